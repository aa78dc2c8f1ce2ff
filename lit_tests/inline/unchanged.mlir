// Calls that inline leaves standing, and functions that it keeps.
// RUN: hloom-opt %s --split-input-file --debug-info -o %t && \
// RUN:   hloom-opt %s -p inline --split-input-file --debug-info | diff %t -

// Attributes of a call beside its callee are for XLA: where to run it, or not to inline it.
func.func public @calls_with_attributes(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @f(%x) {mhlo.frontend_attributes = {inlineable = "false"}} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = call @f(%0) {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// There is no end to inlining a function into itself, or two into each other.
func.func public @recursive_functions(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @itself(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = call @one(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @itself(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @itself(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @one(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @other(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @one(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// A declaration has no body.
func.func public @a_declaration(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @declared(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @declared(tensor<4xf32>) -> tensor<4xf32>

// -----

// A function of two blocks does not fit into one.
func.func public @two_blocks(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @jump(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @jump(%x: tensor<4xf32>) -> tensor<4xf32> {
  cf.br ^bb1(%x : tensor<4xf32>)
^bb1(%a: tensor<4xf32>):
  return %a : tensor<4xf32>
}

// -----

// Functions that composites and custom calls refer to, and what these functions refer to in turn.
func.func public @functions_referred_to(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.composite "hloom.region" %x {decomposition = @region} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @target(%0) {called_computations = [@computation]}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @region(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.composite "hloom.inner" %x {decomposition = @inner_region} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @inner_region(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @computation(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// Functions referred to from deep inside an attribute: a dictionary's value, an array's array.
func.func public @references_inside_attributes(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @target(%x) {mhlo.backend_config = {callee = @in_a_dictionary}}
      : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @target(%0)
      {hloom.computations = [[@in_an_array], [{callee = @in_both}]]}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @in_a_dictionary(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @in_an_array(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @in_both(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// A function that is not to be inlined.
func.func public @no_inline(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @apart(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @apart(%x: tensor<4xf32>) -> tensor<4xf32> attributes {no_inline} {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// Functions that give an argument or a result a sharding.
sdy.mesh @mesh = <["devices"=2]>
func.func public @shardings(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @sharded_argument(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = call @sharded_result(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @sharded_argument(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"devices"}]>}) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @sharded_result(%x: tensor<4xf32>) -> (tensor<4xf32> {mhlo.sharding = "{replicated}"}) {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// Functions that only attributes of a dialect name: the symbol is inside the attribute's text.
func.func private @devices()
func.func private @"other devices"()
func.func public @named_by_replica_groups(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @exchange(%x)
      {replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @devices, axes = [#stablehlo.axis_ref<name = "x">]>}
      : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.custom_call @exchange(%0)
      {groups = [#stablehlo.replica_group_mesh_axes<mesh = @"other devices", axes = [#stablehlo.axis_ref<name = "x">]>]}
      : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
