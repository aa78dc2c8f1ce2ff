from __future__ import annotations
from jax.extend.mlir import ir
import math
from hloom.passes.analysis.memory_model.memory_rules import MemoryRules
from hloom.passes.ir.op_facts import BufferUse
from hloom.passes.ir.ops import buffer_use_of
from hloom.passes.analysis.memory_model.fusion import INLINED, Kernels

USES={"stablehlo.dot_general":BufferUse.PRODUCT,"stablehlo.convolution":BufferUse.PRODUCT,
"stablehlo.gather":BufferUse.REDUCTION,"stablehlo.dynamic_slice":BufferUse.SLICE,"stablehlo.dynamic_update_slice":BufferUse.UPDATE}
class TpuRules(MemoryRules):
    transposes_stacks=False
    shifts=False
    def use_of(self, name, results):
        if name in USES: return USES[name]
        use = buffer_use_of(name, results)
        if use is BufferUse.HEAVY: return BufferUse.FUSED
        return use
    def refine(self, graph, trace):
        for position in range(len(trace.uses)):
            name=graph.names[position]
            if name=="stablehlo.scatter" and self.one_hot(graph,position):
                trace.uses[position]=BufferUse.FUSED
            if name=="stablehlo.gather":
                operand=trace.reads[position][0]
                p=graph.producers[operand]
                if p>=0 and trace.uses[p] in INLINED and not graph.constant_derived[operand]:
                    trace.inner[position]+=trace.sizes[operand]
        self.keep(graph,trace)
    def keep(self, graph, trace):
        k=Kernels(trace)
        sources=[frozenset()]*len(trace.sizes)
        for v in trace.inputs: sources[v]=frozenset([v])
        for p,(use,reads,makes) in enumerate(zip(trace.uses,trace.reads,trace.makes)):
            if use in INLINED:
                v=makes[0]
                read=frozenset().union(*[sources[r] for r in reads])
                if k._in_memory[v]: sources[v]=frozenset([v]); continue
                if v in k.branches and use is BufferUse.FUSED and trace.sizes[v]>=1024:
                    big=[r for r in read if trace.sizes[r]*4>=trace.sizes[v]]
                    if len(big)>1:
                        trace.uses[p]=BufferUse.HEAVY
                        sources[v]=frozenset([v]); continue
                sources[v]=read
            else:
                for v in makes: sources[v]=frozenset([v])
    def one_hot(self, graph, position):
        op=graph.ops[position]
        if len(op.results)!=1: return False
        if not graph.constant_derived[graph.index[op.operands[0]]]: return False
        out=ir.RankedTensorType(op.operands[0].type).shape
        upd=ir.RankedTensorType(op.operands[2].type).shape
        # one update for each row
        return sorted(d for d in out if d>1)!=[] and math.prod(upd)*max(out)==math.prod(out)
TPU = TpuRules()
