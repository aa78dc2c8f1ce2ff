// Products of rows in groups become loops over tiles, each of one group.
// RUN: hloom-opt %s -p "ragged{loops=all rows=16}" | filecheck %s

// 64 rows of 4 groups, 16 to a tile: at most 7 tiles. Rows of others stay as they are.
// CHECK-LABEL: func.func public @rows
// CHECK-DAG:     %[[NOTHING:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<64x16xf32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[TILE:.*]] = %{{.*}}, %[[OUT:.*]] = %[[NOTHING]])
// CHECK:           stablehlo.constant dense<7> : tensor<i32>
// CHECK:           %[[ROWS:.*]] = stablehlo.dynamic_slice %arg0, {{.*}} sizes = [16, 8]
// CHECK:           %[[PART:.*]] = stablehlo.dynamic_slice %arg1, {{.*}} sizes = [1, 8, 16]
// CHECK-NEXT:      %[[MATRIX:.*]] = stablehlo.reshape %[[PART]]
// CHECK:           %[[MADE:.*]] = stablehlo.dot_general %[[ROWS]], %[[MATRIX]], contracting_dims = [1] x [0]
// CHECK:           %[[BEFORE:.*]] = stablehlo.dynamic_slice %[[OUT]], {{.*}} sizes = [16, 16]
// CHECK:           %[[AFTER:.*]] = stablehlo.select %{{.*}}, %[[MADE]], %[[BEFORE]]
// CHECK:           stablehlo.dynamic_update_slice %[[OUT]], %[[AFTER]]
// CHECK:         return %[[LOOP]]#1
func.func public @rows(%x: tensor<64x8xf32>, %w: tensor<4x8x16xf32>, %sizes: tensor<4xi32>) -> tensor<64x16xf32> {
  %0 = "chlo.ragged_dot"(%x, %w, %sizes) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<64x8xf32>, tensor<4x8x16xf32>, tensor<4xi32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}

// Sums over the rows of each group. A sum in bfloat16 is carried in float32 until its group ends.
// CHECK-LABEL: func.func public @sums
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while({{.*}}, %[[OUT:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i32>, tensor<4x8x16xbf16>, tensor<8x16xf32>
// CHECK-COUNT-2:   stablehlo.select %{{.*}} : tensor<16x{{8|16}}xi1>
// CHECK:           %[[MADE:.*]] = stablehlo.dot_general %{{.*}}, contracting_dims = [0] x [0], {{.*}} -> tensor<8x16xf32>
// CHECK:           %[[KEPT:.*]] = stablehlo.select %{{.*}}, %{{.*}}, %[[SUM]]
// CHECK:           %[[TOTAL:.*]] = stablehlo.add %[[KEPT]], %[[MADE]]
// CHECK:           stablehlo.convert %[[TOTAL]] : (tensor<8x16xf32>) -> tensor<8x16xbf16>
// CHECK:         return %[[LOOP]]#1
func.func public @sums(%x: tensor<64x8xbf16>, %y: tensor<64x16xbf16>, %sizes: tensor<4xi32>) -> tensor<4x8x16xbf16> {
  %0 = "chlo.ragged_dot"(%x, %y, %sizes) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> : (tensor<64x8xbf16>, tensor<64x16xbf16>, tensor<4xi32>) -> tensor<4x8x16xbf16>
  return %0 : tensor<4x8x16xbf16>
}

// Each place of a batch has groups of its own: 2 x 7 tiles, each with a place, and slices of one.
// CHECK-LABEL: func.func public @places
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while({{.*}}, %[[OUT:.*]] = %{{.*}}) : tensor<i32>, tensor<2x64x16xf32>
// CHECK:           stablehlo.constant dense<14> : tensor<i32>
// CHECK:           %[[ROW:.*]] = stablehlo.dynamic_slice %{{.*}}, sizes = [1] : (tensor<14xi32>, tensor<i32>)
// CHECK-NEXT:      %[[PLACE:.*]] = stablehlo.reshape %[[ROW]] : (tensor<1xi32>) -> tensor<i32>
// CHECK:           %[[ROWS:.*]] = stablehlo.dynamic_slice %arg0, %[[PLACE]], {{.*}} sizes = [1, 16, 8]
// CHECK:           %[[PART:.*]] = stablehlo.dynamic_slice %arg1, %[[PLACE]], {{.*}} sizes = [1, 1, 8, 16]
// CHECK-NEXT:      %[[MATRIX:.*]] = stablehlo.reshape %[[PART]]
// CHECK:           stablehlo.dot_general %[[ROWS]], %[[MATRIX]], batching_dims = [0] x [0], contracting_dims = [2] x [1]
// CHECK:           stablehlo.dynamic_update_slice %[[OUT]], %{{.*}}, %[[PLACE]], {{.*}} tensor<1x16x16xf32>
// CHECK:         return %[[LOOP]]#1
func.func public @places(%x: tensor<2x64x8xf32>, %w: tensor<2x4x8x16xf32>, %sizes: tensor<2x4xi32>) -> tensor<2x64x16xf32> {
  %0 = "chlo.ragged_dot"(%x, %w, %sizes) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [1], rhs_group_dimensions = [1]>}> : (tensor<2x64x8xf32>, tensor<2x4x8x16xf32>, tensor<2x4xi32>) -> tensor<2x64x16xf32>
  return %0 : tensor<2x64x16xf32>
}

// Sums that are added to other ones begin with these: no zeros, and no addition behind the loop.
// CHECK-LABEL: func.func public @added
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while({{.*}}, %[[OUT:.*]] = %arg0) : tensor<i32>, tensor<4x8x16xf32>
// CHECK:           %[[BEFORE:.*]] = stablehlo.dynamic_slice %[[OUT]]
// CHECK:           stablehlo.add %[[BEFORE]], %{{.*}} : tensor<1x8x16xf32>
// CHECK-NOT:     stablehlo.add {{.*}} : tensor<4x8x16xf32>
// CHECK:         return %[[LOOP]]#1
func.func public @added(%sum: tensor<4x8x16xf32>, %x: tensor<64x8xbf16>, %y: tensor<64x16xbf16>, %sizes: tensor<4xi32>) -> tensor<4x8x16xf32> {
  %0 = "chlo.ragged_dot"(%x, %y, %sizes) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> : (tensor<64x8xbf16>, tensor<64x16xbf16>, tensor<4xi32>) -> tensor<4x8x16xf32>
  %1 = stablehlo.add %sum, %0 : tensor<4x8x16xf32>
  return %1 : tensor<4x8x16xf32>
}

// In a batch JAX puts the groups behind it once the gradient is made. The loop does that, and adds.
// CHECK-LABEL: func.func public @added_places
// CHECK-NOT:     stablehlo.transpose
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while({{.*}}, %[[OUT:.*]] = %arg0) : tensor<i32>, tensor<2x4x8x16xf32>
// CHECK:           stablehlo.dynamic_slice %[[OUT]], %[[PLACE:[^,]*]], %[[GROUP:[^,]*]], {{.*}} sizes = [1, 1, 8, 16]
// CHECK:           stablehlo.dynamic_update_slice %[[OUT]], %{{.*}}, %[[PLACE]], %[[GROUP]], {{.*}} tensor<1x1x8x16xf32>
// CHECK:         return %[[LOOP]]#1
func.func public @added_places(%sum: tensor<2x4x8x16xf32>, %x: tensor<2x64x8xbf16>, %y: tensor<2x64x16xbf16>, %sizes: tensor<2x4xi32>) -> tensor<2x4x8x16xf32> {
  %0 = "chlo.ragged_dot"(%x, %y, %sizes) <{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [1]>}> : (tensor<2x64x8xbf16>, tensor<2x64x16xbf16>, tensor<2x4xi32>) -> tensor<4x2x8x16xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0, 2, 3] : (tensor<4x2x8x16xf32>) -> tensor<2x4x8x16xf32>
  %2 = stablehlo.add %1, %sum : tensor<2x4x8x16xf32>
  return %2 : tensor<2x4x8x16xf32>
}
