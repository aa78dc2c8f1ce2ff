"""Dimensions that are one and the same: a union-find whose members may be products of others.

Each axis starts as an *atom* of its length. Axes that are the same dimension are united. A reshape
makes one atom a product of several, so that a class of atoms is either of one dimension or a
sequence of other classes, the major one first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Atoms:
    """Atoms by number, united and divided."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._parents: list[int] = []
        self._factors: dict[int, tuple[int, ...]] = {}

    def atom(self, size: int) -> int:
        """A new atom, which is like no other."""
        self.sizes.append(size)
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def root(self, atom: int) -> int:
        parents = self._parents
        while parents[atom] != atom:
            parents[atom] = parents[parents[atom]]
            atom = parents[atom]
        return atom

    def leaves(self, atom: int) -> Iterator[int]:
        """The dimensions that an atom is the product of, the major one first."""
        root = self.root(atom)
        factors = self._factors.get(root)
        if factors is None:
            yield root
        else:
            for factor in factors:
                yield from self.leaves(factor)

    def unite(self, one: int, other: int) -> None:
        """Makes two atoms of one size the same, as far as their factors agree."""
        one, other = self.root(one), self.root(other)
        if one == other:
            return
        if one in self._factors and other in self._factors:
            self.match([one], [other])
        elif one in self._factors:
            self._parents[other] = one
        else:
            self._parents[one] = other

    def match(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Makes two products of atoms the same, dividing atoms where it takes that.

        Where sizes share no factor the rest stays as it is: it is not known to be the same.
        """
        lefts = [leaf for atom in reversed(left) for leaf in reversed(list(self.leaves(atom)))]
        rights = [leaf for atom in reversed(right) for leaf in reversed(list(self.leaves(atom)))]
        while lefts and rights:
            one, other = self.root(lefts.pop()), self.root(rights.pop())
            if one == other:
                continue
            if one in self._factors or other in self._factors:  # divided meanwhile
                lefts += reversed(list(self.leaves(one)))
                rights += reversed(list(self.leaves(other)))
                continue
            small, large = self.sizes[one], self.sizes[other]
            if small == large:
                self._parents[one] = other
            elif large % small == 0:
                rights.append(self._divided(other, one))
            elif small % large == 0:
                lefts.append(self._divided(one, other))
            else:
                return

    def _divided(self, atom: int, major: int) -> int:
        """Makes an atom the product of a major one and a new one, which it returns."""
        minor = self.atom(self.sizes[atom] // self.sizes[major])
        self._factors[atom] = (major, minor)
        return minor
