// A head over four devices, its batch and the rows of its weights sharded: a loop over positions
// gathers the weights once, before it, and each device adds up its own terms of their gradient.
// RUN: hloom-opt %s -p "chunk{chunks=2 min_bytes=10KiB},cse" -o %t && filecheck %s < %t
// Twice is once: chunks are smaller than min_bytes.
// RUN: hloom-opt %t -p "chunk{chunks=2 min_bytes=10KiB}" --print-plan=json -o %t.2 2>&1 | filecheck %s --check-prefix=AGAIN
// RUN: hloom-opt %s -p "chunk{chunks=2 min_bytes=10KiB}" --print-plan=json -o %t 2>&1 | filecheck %s --check-prefix=PLAN

// AGAIN: "summary": "nothing to run in chunks
// PLAN: "tensor<16x64xf32>, accumulated on each of 4 devices"

sdy.mesh @mesh = <["data"=4]>

// CHECK-LABEL: func.func public @main
// CHECK-DAG:     %[[WHOLE:.*]] = sdy.sharding_constraint %arg1 <@mesh, [{}, {}]> : tensor<16x64xf32>
// CHECK-DAG:     %[[START:.*]] = sdy.sharding_constraint %{{.*}} <@mesh, [{"data"}, {}, {}]> : tensor<4x16x64xf32>
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while({{.*}} = %[[START]])
// CHECK:           stablehlo.dot_general %{{.*}}, %[[WHOLE]]
// CHECK:           %[[X:.*]] = stablehlo.reshape %{{.*}} : (tensor<8x16x16xf32>) -> tensor<4x2x16x16xf32>
// CHECK:           %[[G:.*]] = stablehlo.reshape %{{.*}} : (tensor<8x16x64xf32>) -> tensor<4x2x16x64xf32>
// CHECK:           %[[D:.*]] = stablehlo.dot_general %[[X]], %[[G]], batching_dims = [0] x [0], contracting_dims = [1, 2] x [1, 2]
// CHECK-SAME:        -> tensor<4x16x64xf32>
// CHECK:           stablehlo.add %iterArg{{.*}}, %[[D]] : tensor<4x16x64xf32>
// CHECK:         %[[SUM:.*]] = stablehlo.reduce(%[[LOOP]]#{{.}} init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK:         %[[PLACED:.*]] = sdy.sharding_constraint %[[SUM]] <@mesh, [{"data"}, {}]> : tensor<16x64xf32>
// CHECK:         return %{{.*}}, %[[PLACED]]
func.func public @main(
    %x: tensor<8x32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}, {}]>},
    %w: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
  ) -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<8x32x16xf32>, tensor<16x64xf32>) -> tensor<8x32x64xf32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %least) applies stablehlo.maximum across dimensions = [2] : (tensor<8x32x64xf32>, tensor<f32>) -> tensor<8x32xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<8x32xf32>) -> tensor<8x32x64xf32>
  %3 = stablehlo.subtract %0, %2 : tensor<8x32x64xf32>
  %4 = stablehlo.exponential %3 : tensor<8x32x64xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<8x32x64xf32>, tensor<f32>) -> tensor<8x32xf32>
  %6 = stablehlo.dot_general %x, %4, contracting_dims = [0, 1] x [0, 1] : (tensor<8x32x16xf32>, tensor<8x32x64xf32>) -> tensor<16x64xf32>
  return %5, %6 : tensor<8x32xf32>, tensor<16x64xf32>
}
