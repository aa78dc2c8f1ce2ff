"""All dimensions of a program, found in one pass: which axes are one dimension.

A signature says which axes of an operation are the same. The axes of loop carries, of the results
of branches, and of the operands and results of code on single devices are the same as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...ir.op_facts import Category
from ...ir.ops import facts_of
from ...ir.shardings import argument_placement
from ..program import Code, Node, Program, trips_of
from ..signatures.signature import AxisLayout
from .regions import computation_counts
from .result import Seed, made_at


@dataclass(frozen=True)
class Dimension:
    """Axes of arguments that are one dimension.

    Attributes:
      size: the number of its elements.
      seeds: the arguments' axes, in order.
      share: the share of the FLOPs of all matrix products that are in products with this dimension.
      devices: the number of devices that it is sharded over, as its major part.
    """

    size: int
    seeds: tuple[Seed, ...]
    share: float
    devices: int

    @property
    def cut_on_each_device(self) -> tuple[Seed, ...]:
        """Returns seeds of which each chunk has a part on every device; none where too short."""
        if self.size % self.devices or self.size // self.devices < 2:
            return ()
        return tuple(
            Seed(
                seed.value,
                AxisLayout(
                    seed.layout.axis,
                    seed.layout.outer * self.devices,
                    seed.layout.size // self.devices,
                    seed.layout.inner,
                ),
            )
            for seed in self.seeds
        )

    def __str__(self) -> str:
        seeds = "; ".join(f"{made_at(seed.value)} along {seed.layout}" for seed in self.seeds)
        sharded = f", over {self.devices} devices" if self.devices > 1 else ""
        return f"dimension of {self.size}{sharded}, {self.share:.1%} of the products: {seeds}"


class ProgramDimensions:
    """The dimensions of all values: which axes are one dimension.

    Attributes:
      products: the matrix products, each with the FLOPs of all its runs.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._atoms = Atoms()
        self._axes: dict[int, tuple[int, ...]] = {}
        self._walked: set[int] = set()
        self.products: list[tuple[Node, float]] = []
        self._walk(program.root, 1)

    def of(self, value: int) -> frozenset[int]:
        """Returns the dimensions that a value has, by number."""
        return frozenset(leaf for atom in self.axes(value) for leaf in self._atoms.leaves(atom))

    def axes(self, value: int) -> tuple[int, ...]:
        """Returns the atom of each axis of a value; none for one without a static shape."""
        found = self._axes.get(value)
        if found is None:
            shape = self._program.shapes[value] or ()
            found = self._axes[value] = tuple(map(self._atoms.atom, shape))
        return found

    def _walk(self, block: Code, runs: float) -> None:
        for node in block.nodes:
            if facts_of(node.op.name).is_product:
                self.products.append((node, runs * node.flops))
            if node.blocks:
                self._region(node, runs)
            elif node.category is Category.RELABEL:
                self._same(node.operands, node.results)
            else:
                self._operation(node)

    def _operation(self, node: Node) -> None:
        signature = self._program.signature_of(node)
        if signature is None:
            return
        atoms = self._atoms
        by_factor: dict[int, int] = {}
        for values, axes_of in (
            (node.operands, signature.operands),
            (node.results, signature.results),
        ):
            for value, axes in zip(values, axes_of, strict=True):
                for atom, factors in zip(self.axes(value), axes, strict=False):
                    if len(factors) == 1:
                        known = by_factor.setdefault(factors[0], atom)
                        if known != atom:
                            atoms.unite(known, atom)
                    elif factors:
                        for factor in factors:
                            if factor not in by_factor:
                                by_factor[factor] = atoms.atom(signature.sizes[factor])
                        atoms.match([atom], [by_factor[factor] for factor in factors])

    def _region(self, node: Node, runs: float) -> None:
        if node.category is Category.LOOP:
            condition, body = node.blocks
            self._same(node.operands, condition.arguments)
            self._same(node.operands, body.arguments)
            self._same(node.operands, body.returned)
            self._same(node.operands, node.results)
            runs *= trips_of(node.op)
        elif node.category is Category.MANUAL:
            [block] = node.blocks
            read, made = computation_counts(node.op)
            self._parts(node.operands, block.arguments, read)
            self._parts(node.results, block.returned, made)
        elif node.is_call:
            [block] = node.blocks
            self._same(node.operands, block.arguments)
            self._same(node.results, block.returned)
            if id(block) in self._walked:
                return
            self._walked.add(id(block))
        else:
            for block in node.blocks:
                self._same(node.results, block.returned)
        for block in node.blocks:
            self._walk(block, runs)

    def _same(self, values: Iterable[int], others: Iterable[int]) -> None:
        for value, other in zip(values, others, strict=True):
            for one, two in zip(self.axes(value), self.axes(other), strict=False):
                self._atoms.unite(one, two)

    def _parts(
        self, values: Sequence[int], parts: Sequence[int], counts: Sequence[dict[int, int]]
    ) -> None:
        """Unites values with their parts: devices are the major factor of an axis split by hand."""
        for value, part, by_axis in zip(values, parts, counts, strict=True):
            pairs = zip(self.axes(value), self.axes(part), strict=False)
            for axis, (one, two) in enumerate(pairs):
                count = by_axis.get(axis, 1)
                if count > 1:
                    self._atoms.match([one], [self._atoms.atom(count), two])
                else:
                    self._atoms.unite(one, two)

    def found(self) -> tuple[Dimension, ...]:
        """Returns the dimensions of arguments, by their share of products, then by argument."""
        atoms, program = self._atoms, self._program
        shares: dict[int, float] = {}
        for node, flops in self.products:
            for leaf in frozenset().union(*map(self.of, (*node.operands, *node.results))):
                shares[leaf] = shares.get(leaf, 0.0) + flops
        seeds: dict[int, list[Seed]] = {}
        devices: dict[int, int] = {}
        for argument in program.root.arguments:
            value = program.values[argument]
            placement = argument_placement(value)
            counts = {} if placement is None else placement.counts
            for axis, atom in enumerate(self.axes(argument)):
                outer, inner = 1, atoms.sizes[atom]
                for leaf in atoms.leaves(atom):
                    size = atoms.sizes[leaf]
                    inner //= max(size, 1)
                    if size > 1:
                        layout = AxisLayout(axis, outer, size, inner)
                        seeds.setdefault(leaf, []).append(Seed(value, layout))
                    if outer == 1 and size % counts.get(axis, 1) == 0:
                        devices[leaf] = max(devices.get(leaf, 1), counts.get(axis, 1))
                    outer *= size
        total = sum(flops for _, flops in self.products) or 1.0
        dimensions = [
            Dimension(
                atoms.sizes[leaf],
                tuple(places),
                shares.get(leaf, 0.0) / total,
                devices.get(leaf, 1),
            )
            for leaf, places in seeds.items()
        ]
        return tuple(sorted(dimensions, key=lambda each: -each.share))


class Atoms:
    """A union-find of dimensions, whose members may be products of others.

    Each axis starts as an *atom* of its length. Axes that are the same dimension are united. A
    reshape makes one atom a product of several, so that a class of atoms is either of one dimension
    or a sequence of other classes, the major one first.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._parents: list[int] = []
        self._factors: dict[int, tuple[int, ...]] = {}

    def atom(self, size: int) -> int:
        """Returns a new atom, which is like no other."""
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
        """Yields the dimensions that an atom is the product of, the major one first."""
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
        """Unites two products of atoms, dividing atoms where needed.

        Where sizes share no factor the rest stays as it is: it is not known to be equal.
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
        """Divides an atom into a major one and a new one, and returns the new one."""
        minor = self.atom(self.sizes[atom] // self.sizes[major])
        self._factors[atom] = (major, minor)
        return minor
