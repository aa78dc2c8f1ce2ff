// A parameter that is split over devices is gathered once for all products that read one value. The
// last one that the forward pass reads, the loss head's, stays gathered for the backward pass: it
// is not converted again, and no barrier comes between it and the clones that read it.
// RUN: hloom-opt %s -p "remat{min_bytes=0 budget=1B}" --split-input-file | filecheck %s

// CHECK-LABEL: func.func public @main
// CHECK:         %[[HEAD:.*]] = stablehlo.convert %arg1
// CHECK:         stablehlo.dot_general %arg0, %[[HEAD]]
// CHECK:         %[[AGAIN:.*]]:2 = stablehlo.optimization_barrier %arg0, %{{[0-9]+}} :
// CHECK-NEXT:    stablehlo.dot_general %[[AGAIN]]#0, %[[HEAD]]
// CHECK:         stablehlo.dot_general %{{.*}}, %[[HEAD]]
// CHECK-NOT:     stablehlo.convert
module attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["a"=8]>
  func.func public @main(%x: tensor<32x64xbf16>, %w: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}, %y: tensor<32x4096xbf16>, %z: tensor<32x512xbf16>) -> (tensor<512x64xbf16>, tensor<32x64xbf16>) {
    %0 = stablehlo.convert %w : (tensor<64x512xf32>) -> tensor<64x512xbf16> loc("jvp()/convert")
    %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<32x64xbf16>, tensor<64x512xbf16>) -> tensor<32x512xbf16> loc("jvp()/dot_general")
    %2 = stablehlo.tanh %1 : tensor<32x512xbf16> loc("jvp()/tanh")
    %3 = stablehlo.dot_general %2, %2, contracting_dims = [1] x [1] : (tensor<32x512xbf16>, tensor<32x512xbf16>) -> tensor<32x32xbf16> loc("jvp()/dot_general")
    %4 = stablehlo.dot_general %3, %y, contracting_dims = [1] x [0] : (tensor<32x32xbf16>, tensor<32x4096xbf16>) -> tensor<32x4096xbf16> loc("jvp()/dot_general")
    %5 = stablehlo.dot_general %4, %4, contracting_dims = [1] x [1] : (tensor<32x4096xbf16>, tensor<32x4096xbf16>) -> tensor<32x32xbf16> loc("transpose(jvp())/dot_general")
    %6 = stablehlo.dot_general %5, %z, contracting_dims = [1] x [0] : (tensor<32x32xbf16>, tensor<32x512xbf16>) -> tensor<32x512xbf16> loc("transpose(jvp())/dot_general")
    %7 = stablehlo.multiply %6, %2 : tensor<32x512xbf16> loc("transpose(jvp())/mul")
    %8 = stablehlo.dot_general %7, %x, contracting_dims = [0] x [0] : (tensor<32x512xbf16>, tensor<32x64xbf16>) -> tensor<512x64xbf16> loc("transpose(jvp())/dot_general")
    %9 = stablehlo.dot_general %7, %0, contracting_dims = [1] x [1] : (tensor<32x512xbf16>, tensor<64x512xbf16>) -> tensor<32x64xbf16> loc("transpose(jvp())/dot_general")
    return %8, %9 : tensor<512x64xbf16>, tensor<32x64xbf16>
  }
}

// -----

// On one device nothing is gathered, and the converted copy is not kept.
// CHECK-LABEL: func.func public @main
// CHECK:         %[[AGAIN:.*]]:2 = stablehlo.optimization_barrier %arg1, %{{[0-9]+}} :
// CHECK-NEXT:    stablehlo.convert %[[AGAIN]]#0
module {
  func.func public @main(%x: tensor<32x64xbf16>, %w: tensor<64x512xf32>, %y: tensor<32x4096xbf16>, %z: tensor<32x512xbf16>) -> (tensor<512x64xbf16>, tensor<32x64xbf16>) {
    %0 = stablehlo.convert %w : (tensor<64x512xf32>) -> tensor<64x512xbf16> loc("jvp()/convert")
    %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<32x64xbf16>, tensor<64x512xbf16>) -> tensor<32x512xbf16> loc("jvp()/dot_general")
    %2 = stablehlo.tanh %1 : tensor<32x512xbf16> loc("jvp()/tanh")
    %3 = stablehlo.dot_general %2, %2, contracting_dims = [1] x [1] : (tensor<32x512xbf16>, tensor<32x512xbf16>) -> tensor<32x32xbf16> loc("jvp()/dot_general")
    %4 = stablehlo.dot_general %3, %y, contracting_dims = [1] x [0] : (tensor<32x32xbf16>, tensor<32x4096xbf16>) -> tensor<32x4096xbf16> loc("jvp()/dot_general")
    %5 = stablehlo.dot_general %4, %4, contracting_dims = [1] x [1] : (tensor<32x4096xbf16>, tensor<32x4096xbf16>) -> tensor<32x32xbf16> loc("transpose(jvp())/dot_general")
    %6 = stablehlo.dot_general %5, %z, contracting_dims = [1] x [0] : (tensor<32x32xbf16>, tensor<32x512xbf16>) -> tensor<32x512xbf16> loc("transpose(jvp())/dot_general")
    %7 = stablehlo.multiply %6, %2 : tensor<32x512xbf16> loc("transpose(jvp())/mul")
    %8 = stablehlo.dot_general %7, %x, contracting_dims = [0] x [0] : (tensor<32x512xbf16>, tensor<32x64xbf16>) -> tensor<512x64xbf16> loc("transpose(jvp())/dot_general")
    %9 = stablehlo.dot_general %7, %0, contracting_dims = [1] x [1] : (tensor<32x512xbf16>, tensor<64x512xbf16>) -> tensor<32x64xbf16> loc("transpose(jvp())/dot_general")
    return %8, %9 : tensor<512x64xbf16>, tensor<32x64xbf16>
  }
}
