// What cannot be a pipeline is left as it is, and told with the operation and the user's line.
// RUN: hloom-opt %s -p "pipeline{microbatches=4}" --split-input-file -o %t 2>&1 | filecheck %s

sdy.mesh @mesh = <["stage"=2]>

// A statistic of the batch.
// CHECK: warning: {{.*}}While (while, model.py:5): axis 0 of the carried tensor<8x4xf32>, 8 elements, cannot be cut into microbatches: subtract (sub, model.py:7) needs all of it.
func.func public @statistic(%x: tensor<8x4xf32>, %w: tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {}, {}]>}) -> tensor<8x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %s = stablehlo.reduce(%3 init: %f) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %4 = stablehlo.subtract %3, %b : tensor<8x4xf32> loc("sub"("model.py":7:3))
    stablehlo.return %n, %4, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  } loc("while"("model.py":5:3))
  return %0#1 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["stage"=2]>

// Weights that every device has.
// CHECK: warning: {{.*}}While (while, model.py:5): no loop reads stacks that are sharded along their layers over stage. This one reads 1 stack of 4 layers, of which every device of stage has all, such as tensor<4x4x4xf32>: shard them along axis 0, as P('stage').
func.func public @everywhere(%x: tensor<8x4xf32>, %w: tensor<4x4x4xf32>) -> tensor<8x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %4 = stablehlo.tanh %3 : tensor<8x4xf32>
    stablehlo.return %n, %4, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  } loc("while"("model.py":5:3))
  return %0#1 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["stage"=2]>

// A layer that is not that of the iteration.
// CHECK: warning: {{.*}}Dynamic_slice (model.py:6): it reads tensor<4x4x4xf32>, which is sharded along its layers over stage, otherwise than the layer of the loop's iteration: a pipeline takes a scan that reads one layer in each iteration.
func.func public @next(%x: tensor<8x4xf32>, %w: tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {}, {}]>}) -> tensor<8x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %1 = stablehlo.dynamic_slice %ws, %n, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32> loc("model.py":6:3)
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %4 = stablehlo.tanh %3 : tensor<8x4xf32>
    stablehlo.return %n, %4, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  } loc("while"("model.py":5:3))
  return %0#1 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["stage"=2]>

// Devices that meet in a layer.
// CHECK: warning: {{.*}}All_reduce (psum, model.py:8): it meets other devices, in a layer.
func.func public @meeting(%x: tensor<8x4xf32>, %w: tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {}, {}]>}) -> tensor<8x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %4 = "stablehlo.all_reduce"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %5 = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32> loc("psum"("model.py":8:3))
    stablehlo.return %n, %4, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  } loc("while"("model.py":5:3))
  return %0#1 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["data"=2, "pipe"=2]>

// An axis that the mesh does not have.
// CHECK: warning: {{.*}}'stage' is no axis of the mesh. There are data of 2, pipe of 2.
func.func public @nowhere(%x: tensor<8x4xf32>, %w: tensor<4x4x4xf32>) -> tensor<8x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %4 = stablehlo.tanh %3 : tensor<8x4xf32>
    stablehlo.return %n, %4, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  } loc("while"("model.py":5:3))
  return %0#1 : tensor<8x4xf32>
}

// CHECK-NOT: {{error|warning}}:
