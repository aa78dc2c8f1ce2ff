// The module comes back the same through text, bytecode, stdin and a file.
// RUN: hloom-opt %s | filecheck %s
// RUN: hloom-opt < %s | filecheck %s
// RUN: hloom-opt - -p off < %s | filecheck %s
// RUN: hloom-opt %s --emit-bytecode -o %t.mlirbc
// RUN: hloom-opt %t.mlirbc | filecheck %s
// RUN: hloom-opt %s --emit-bytecode | hloom-opt -o %t.mlir
// RUN: hloom-opt %t.mlir | diff - %t.mlir

// CHECK:      module @m {
// CHECK-NEXT:   func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
// CHECK-NEXT:     %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
// CHECK-NEXT:     return %0 : tensor<2xf32>
// CHECK-NEXT:   }
// CHECK-NEXT: }
// CHECK-NOT:  loc
module @m {
  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %x, %x : tensor<2xf32> loc("train.py":3:1)
    return %0 : tensor<2xf32>
  }
}
