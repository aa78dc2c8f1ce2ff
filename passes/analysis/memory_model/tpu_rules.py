from __future__ import annotations
from jax.extend.mlir import ir
import math
from hloom.passes.analysis.memory_model.memory_rules import MemoryRules
from hloom.passes.ir.op_facts import BufferUse
from hloom.passes.ir.ops import buffer_use_of
from hloom.passes.analysis.memory_model.layouts import transposed_stacks
from hloom.passes.analysis.memory_model.fusion import INLINED, Kernels

USES={"stablehlo.dot_general":BufferUse.PRODUCT,"stablehlo.convolution":BufferUse.PRODUCT,
"stablehlo.gather":BufferUse.REDUCTION,"stablehlo.dynamic_update_slice":BufferUse.UPDATE}
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
            if name=="stablehlo.dot_general":
                trace.uses[position]=self.product(graph.ops[position])
            if name=="stablehlo.gather":
                operand=trace.reads[position][0]
                p=graph.producers[operand]
                if p>=0 and trace.uses[p] in INLINED and not graph.constant_derived[operand]:
                    trace.inner[position]+=trace.sizes[operand]
            if name=="stablehlo.scatter" and trace.uses[position] is not BufferUse.FUSED and graph.constant_derived[graph.index[graph.ops[position].operands[0]]]:
                users=graph.users[trace.makes[position][0]]
                if len(users)==1 and graph.names[users[0]]=="stablehlo.add": trace.uses[users[0]]=BufferUse.WHOLE
        owner=graph.block.owner.operation
        if owner.name=="stablehlo.while" and graph.block==owner.regions[1].blocks[0]:
            for stack,slices in transposed_stacks(owner):
                for one in slices:
                    p=graph.producers[graph.index[one.results[0]]]
                    trace.uses[p]=BufferUse.REDUCTION
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
                        u=self.mark(graph,trace,k,p)
                        sources[u]=sources[v]=frozenset([u]); continue
                sources[v]=read
            else:
                for v in makes: sources[v]=frozenset([v])
    def mark(self,graph,trace,k,p):
        while True:
            reads=[r for r in trace.reads[p] if not k.free[r]]
            if len(reads)!=1: break
            q=graph.producers[reads[0]]
            if q<0 or trace.uses[q] is not BufferUse.FUSED or k._in_memory[reads[0]] or graph.names[p]!="stablehlo.convert" or trace.sizes[reads[0]]>=trace.sizes[trace.makes[p][0]]: break
            p=q
        trace.uses[p]=BufferUse.HEAVY
        return trace.makes[p][0]
    def product(self,op):
        from jax.extend.mlir.dialects import stablehlo
        d=stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        batch=d.lhs_batching_dimensions; con=d.lhs_contracting_dimensions
        l=ir.RankedTensorType(op.operands[0].type).shape; r=ir.RankedTensorType(op.operands[1].type).shape
        if math.prod(l[i] for i in con)==1: return BufferUse.FUSED
        nb=math.prod(l[i] for i in batch); nc=math.prod(l[i] for i in con)
        if math.prod(l)==nb*nc or math.prod(r)==nb*nc: return BufferUse.REDUCTION
        return BufferUse.PRODUCT
    def one_hot(self, graph, position):
        op=graph.ops[position]
        if len(op.results)!=1: return False
        if not graph.constant_derived[graph.index[op.operands[0]]]: return False
        out=ir.RankedTensorType(op.operands[0].type).shape
        upd=ir.RankedTensorType(op.operands[2].type).shape
        # one update for each row
        return sorted(d for d in out if d>1)!=[] and math.prod(upd)*max(out)==math.prod(out)
TPU = TpuRules()
