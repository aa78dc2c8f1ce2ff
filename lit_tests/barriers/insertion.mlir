// Where barriers are put.
// RUN: hloom-opt %s -p barriers -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p barriers | diff %t -

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>

// Its operand goes through the barrier, so that it stays in its buffer.
// CHECK-LABEL: func.func public @entry(
func.func public @entry(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %r = stablehlo.custom_call @k(%x) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Its result goes through the barrier, and its operand stays alive until then. It takes its operand
// no sooner than the token.
// CHECK-LABEL: func.func public @exit(
func.func public @exit(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %r = stablehlo.custom_call @k(%x) {hloom.collective = "exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[K1]], %[[I1]] {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// What reads the result reads it behind the barrier.
// CHECK-LABEL: func.func public @entry_and_exit(
func.func public @entry_and_exit(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "entry exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[K1]],
    // CHECK-SAME: %[[B1]]#1 {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k in @
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[B2]]#1
    %r = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S1]], %[[B2]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// At the end what is returned goes through, so that XLA keeps the barrier.
// CHECK-LABEL: func.func public @module(
func.func public @module(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[T2]], %[[K1]]
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[K1]]
    %r = stablehlo.sine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[A1]], %[[S1]], %[[I1]] {
    // CHECK-SAME: kind = "module"{{.*}}site = "end after @k in @
    // CHECK-NEXT: sdy.return %[[B1]]#1, %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// Only peers synchronize; other partitions are groups of one.
// CHECK-LABEL: func.func public @groups(
func.func public @groups(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}replica_groups = dense<{{\[\[}}0, 2], [1, -1], [3, -1]]>
    // CHECK-SAME: site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %r = stablehlo.custom_call @k(%x) {hloom.collective = "entry groups=[[0,2]]"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// As set_xla_metadata writes it.
// CHECK-LABEL: func.func public @frontend(
func.func public @frontend(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %r = stablehlo.custom_call @k(%x) {mhlo.frontend_attributes = {hloom.collective = "entry"}}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// An exit comes right after its kernel, so that operands are kept alive no longer than needed.
// CHECK-LABEL: func.func public @exit_is_early(
func.func public @exit_is_early(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[I1:.*]] = stablehlo.composite "hloom.add_dependency" %[[T2]], %[[X1]]
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[I1]])
    %1 = stablehlo.custom_call @k(%x) {hloom.collective = "exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[K1]], %[[I1]] {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k in @
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[X1]]
    %2 = stablehlo.sine %x : tensor<4xf32>
    // CHECK-NEXT: %[[S2:.*]] = stablehlo.add %[[B1]]#1, %[[S1]]
    %r = stablehlo.add %1, %2 : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S2]], %[[B1]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// An operand that the kernel writes to goes through for the kernel alone. Behind it there is nothing to
// keep: the result is in its buffer.
// CHECK-LABEL: func.func public @in_place(
func.func public @in_place(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %1 = stablehlo.custom_call @k(%x)
        {hloom.collective = "entry exit=after", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[B2:.*]]:2 = stablehlo.composite "hloom.barrier" %[[B1]]#0, %[[K1]] {
    // CHECK-SAME: kind = "exit"{{.*}}site = "exit of @k in @
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.add %[[B2]]#1, %[[X1]]
    %r = stablehlo.add %1, %x : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S1]], %[[B2]]#0
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// One value goes through once.
// CHECK-LABEL: func.func public @twice_the_same_operand(
func.func public @twice_the_same_operand(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1, %[[B1]]#1)
    %r = stablehlo.custom_call @k(%x, %x) {hloom.collective = "entry"}
        : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: sdy.return %[[K1]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}

// All behind a barrier read what came out of it, so that XLA need not copy; what is before does not.
// CHECK-LABEL: func.func public @later_readers(
func.func public @later_readers(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  // CHECK: %[[T1:.*]] = stablehlo.composite "hloom.token"
  // CHECK-NEXT: %[[M1:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[T1]])
  // CHECK-SAME: (%[[X1:.*]]: tensor<4xf32>, %[[T2:.*]]: tensor<ui32>)
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK-NEXT: %[[S1:.*]] = stablehlo.sine %[[X1]]
    %1 = stablehlo.sine %x : tensor<4xf32>
    // CHECK-NEXT: %[[B1:.*]]:2 = stablehlo.composite "hloom.barrier" %[[T2]], %[[X1]] {
    // CHECK-SAME: kind = "entry"{{.*}}site = "entry of @k in @
    // CHECK-NEXT: %[[K1:.*]] = stablehlo.custom_call @k(%[[B1]]#1)
    %2 = stablehlo.custom_call @k(%x) {hloom.collective = "entry"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[A1:.*]] = stablehlo.composite "hloom.after_all" %[[B1]]#0, %[[K1]]
    // CHECK-NEXT: %[[S2:.*]] = stablehlo.add %[[S1]], %[[K1]]
    %3 = stablehlo.add %1, %2 : tensor<4xf32>
    // CHECK-NEXT: %[[S3:.*]] = stablehlo.add %[[S2]], %[[B1]]#1
    %r = stablehlo.add %3, %x : tensor<4xf32>
    // CHECK-NEXT: sdy.return %[[S3]], %[[A1]]
    sdy.return %r : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  // CHECK: return %[[M1]]#0
  return %0 : tensor<16xf32>
}
}
