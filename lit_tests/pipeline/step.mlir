// A forward loop that stacks residuals, and a backward loop that reads them and stacks gradients.
// RUN: hloom-opt %s -p "pipeline{microbatches=4}" -o %t && filecheck %s < %t
// Twice is once: the loops are none over layers on the axis any more.
// RUN: hloom-opt %t -p "pipeline{microbatches=4}" 2>/dev/null | diff %t -
// RUN: hloom-opt %s -p "pipeline{microbatches=4}" --print-plan=json -o %t 2>&1 | filecheck %s --check-prefix=PLAN
// RUN: hloom-opt %s -p "pipeline{microbatches=4 repeats=2}" | filecheck %s --check-prefix=CIRCULAR

// PLAN: "summary": "pipeline over stage: 4 layers on 2 devices, 4 microbatches, bubble 20 %; 32 B sent a tick"

// Every device has its two layers, and all of the batch.
// CHECK-LABEL: func.func public @step
// CHECK:         %[[F:.*]]:2 = sdy.manual_computation(%{{.*}}, %arg1, %arg0)
// CHECK-SAME:      in_shardings=[<@mesh, [{"stage"}]>, <@mesh, [{"stage"}, {}, {}]>, <@mesh, [{}, {}]>]
// CHECK-SAME:      out_shardings=[<@mesh, [{"stage"}, {}]>, <@mesh, [{"stage"}, {}, {}]>]
// CHECK-SAME:      (%{{.*}}: tensor<1xi32>, %[[W:.*]]: tensor<2x4x4xf32>, %[[X:.*]]: tensor<8x4xf32>)
// CHECK:           %[[PLACE:.*]] = stablehlo.reshape
// CHECK:           %[[FIRST:.*]] = stablehlo.compare EQ, %[[PLACE]]
// CHECK:           %[[LAST:.*]] = stablehlo.compare EQ, %[[PLACE]]
// Ticks: four microbatches, and one for the second device to begin.
// CHECK:           stablehlo.while
// CHECK:             stablehlo.constant dense<5> : tensor<i32>
// CHECK:             %[[OWN:.*]] = stablehlo.dynamic_slice %{{.*}}, sizes = [2, 4]
// CHECK:             %[[CAME:.*]] = stablehlo.select %[[FIRST]], %[[OWN]], %{{.*}} : tensor<i1>, tensor<2x4xf32>
// CHECK:             stablehlo.select %{{.*}}, %{{.*}}, %[[CAME]]
// The layers of a segment, each read in place.
// CHECK:             stablehlo.while
// CHECK:               stablehlo.dynamic_slice %[[W]], %{{.*}}, sizes = [1, 4, 4]
// CHECK:               stablehlo.dot_general {{.*}} -> tensor<2x4xf32>
// A residual goes to its layer and microbatch.
// CHECK:               stablehlo.dynamic_update_slice {{.*}} (tensor<2x8x4xf32>, tensor<1x2x4xf32>,
// CHECK:             stablehlo.select %[[LAST]]
// CHECK:             "stablehlo.collective_permute"
// CHECK-SAME:          source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK:           "stablehlo.reduce_scatter"
// CHECK-SAME:        scatter_dimension = 0

// What the backward loop begins with is made by parts of the batch, as a loss head would be.
// CHECK:         %[[D:.*]] = sdy.sharding_constraint %[[F]]#0 <@mesh, [{"stage", ?}, {?}]>
// The backward loop counts its layers down: its first device is the last one.
// CHECK:         sdy.manual_computation(%{{.*}}, %arg1, %[[F]]#1, %[[D]])
// CHECK:           %[[DEVICE:.*]] = stablehlo.reshape
// CHECK:           stablehlo.subtract %{{.*}}, %[[DEVICE]]
// CHECK:             stablehlo.while
// CHECK:               stablehlo.dot_general {{.*}} contracting_dims = [0] x [0] {{.*}} -> tensor<4x4xf32>
// A gradient is added, unless the device is idle.
// CHECK:               %[[TERM:.*]] = stablehlo.select {{.*}} tensor<1x4x4xf32>
// CHECK:               %[[SUM:.*]] = stablehlo.add %{{.*}}, %[[TERM]]
// CHECK:               stablehlo.dynamic_update_slice %{{.*}}, %[[SUM]]
// CHECK:             "stablehlo.collective_permute"
// CHECK-SAME:          source_target_pairs = dense<{{\[\[}}1, 0]]>
// CHECK:         return

// Layers are dealt out before the loop, four of one as [2, 2] the other way round. What the forward
// loop stacks is read as it is, and gradients are put in order again.
// CIRCULAR-LABEL: func.func public @step
// CIRCULAR:         %[[SPLIT:.*]] = stablehlo.reshape %arg1 : (tensor<4x4x4xf32>) -> tensor<2x2x1x4x4xf32>
// CIRCULAR:         %[[DEALT:.*]] = stablehlo.transpose %[[SPLIT]], dims = [1, 0, 2, 3, 4]
// CIRCULAR:         %[[OUT:.*]] = stablehlo.reshape %[[DEALT]]
// CIRCULAR:         %[[C:.*]]:2 = sdy.manual_computation(%{{.*}}, %[[OUT]], %arg0)
// CIRCULAR:             stablehlo.constant dense<9> : tensor<i32>
// CIRCULAR:             source_target_pairs = dense<{{\[\[}}0, 1], [1, 0]]>
// CIRCULAR:         sdy.manual_computation(%{{.*}}, %[[OUT]], %[[C]]#1, %{{.*}})
// CIRCULAR:         %[[AGAIN:.*]] = stablehlo.transpose {{.*}} (tensor<2x2x1x4x4xf32>)
// CIRCULAR:         %[[G:.*]] = stablehlo.reshape %[[AGAIN]]
// CIRCULAR:         return %{{.*}}, %[[G]]

sdy.mesh @mesh = <["stage"=2]>

func.func public @step(%x: tensor<8x4xf32>, %w: tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {}, {}]>}) -> (tensor<8x4xf32>, tensor<4x4x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %states = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4x8x4xf32>
  %sums = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4x4x4xf32>
  %0:4 = stablehlo.while(%i = %zero, %a = %x, %s = %states, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %4 = stablehlo.tanh %3 : tensor<8x4xf32>
    %5 = stablehlo.reshape %4 : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero, %zero : (tensor<4x8x4xf32>, tensor<1x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x4xf32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %4, %6, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x8x4xf32>, tensor<4x4x4xf32>
  }
  %8:5 = stablehlo.while(%i = %zero, %d = %0#1, %g = %sums, %ws = %w, %s = %0#2) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.subtract %three, %i : tensor<i32>
    %9 = stablehlo.dynamic_slice %ws, %n, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %10 = stablehlo.reshape %9 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.dynamic_slice %s, %n, %zero, %zero, sizes = [1, 8, 4] : (tensor<4x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x4xf32>
    %12 = stablehlo.reshape %11 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
    %13 = stablehlo.multiply %d, %12 : tensor<8x4xf32>
    %14 = stablehlo.dot_general %12, %13, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %15 = stablehlo.reshape %14 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %16 = stablehlo.dynamic_update_slice %g, %15, %n, %zero, %zero : (tensor<4x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x4x4xf32>
    %17 = stablehlo.dot_general %13, %10, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %18 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %18, %17, %16, %ws, %s : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>
  }
  return %8#1, %8#2 : tensor<8x4xf32>, tensor<4x4x4xf32>
}
