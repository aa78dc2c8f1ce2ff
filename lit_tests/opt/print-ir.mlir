// IR goes to stderr, under a header that says when.
// RUN: hloom-opt %s -p inline,cse --print-ir-before=inline --print-ir-after=inline,cse 2>&1 >%t.out | filecheck %s
// RUN: filecheck %s --check-prefix=OUT --input-file=%t.out
// RUN: hloom-opt %s -p inline,cse --print-ir-after-all 2>&1 >%t.out | filecheck %s --check-prefix=AFTER
// RUN: hloom-opt %s -p inline,cse --print-ir-before-all 2>&1 >%t.out | filecheck %s --check-prefix=BEFORE
// RUN: hloom-opt %s -p inline,cse --print-ir-after 2>&1 >%t.out | filecheck %s --check-prefix=AFTER

// CHECK:      // -----// IR Dump Before inline //----- //
// CHECK-NEXT: module {
// CHECK:        call @double
// CHECK:      // -----// IR Dump After inline //----- //
// CHECK-NEXT: module {
// CHECK-NOT:    call @double
// CHECK:        stablehlo.add
// CHECK-NEXT:   stablehlo.add
// CHECK:      // -----// IR Dump After cse //----- //
// CHECK:        stablehlo.add
// CHECK-NEXT:   stablehlo.multiply

// AFTER-NOT: IR Dump Before
// AFTER: IR Dump After inline
// AFTER-NOT: IR Dump Before
// AFTER: IR Dump After cse
// BEFORE-NOT: IR Dump After
// BEFORE: IR Dump Before inline
// BEFORE-NOT: IR Dump After
// BEFORE: IR Dump Before cse

// OUT-NOT:  IR Dump
// OUT:      stablehlo.add
// OUT-NEXT: stablehlo.multiply
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = call @double(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = call @double(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}
func.func private @double(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
