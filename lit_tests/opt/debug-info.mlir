// Locations are printed only where asked for, and survive bytecode.
// RUN: hloom-opt %s --debug-info | filecheck %s
// RUN: hloom-opt %s --emit-bytecode | hloom-opt --debug-info | filecheck %s
// RUN: hloom-opt %s | filecheck %s --check-prefix=BARE

// CHECK: %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32> loc(#[[ADD:loc[0-9]*]])
// CHECK: #[[ADD]] = loc("train.py":3:1)
// BARE: %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>{{$}}
// BARE-NOT: train.py
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32> loc("train.py":3:1)
  return %0 : tensor<2xf32>
}
