// RUN: not hloom-opt %s 2>&1 | filecheck %s
// RUN: not hloom-opt %s -p remta 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not hloom-opt %s --target h100 2>&1 | filecheck %s --check-prefix=TARGET
// RUN: not hloom-opt %s --print-ir-after=incline -p inline 2>&1 | filecheck %s --check-prefix=PRINT
// RUN: not hloom-opt %s.missing 2>&1 | filecheck %s --check-prefix=MISSING

// CHECK:      errors.mlir:15:34: error: use of undeclared SSA value name
// CHECK-NEXT: {{^}}  %0 = stablehlo.multiply %x,    %y : tensor<2xf32>
// CHECK-NEXT: {{^}}                                 ^{{$}}
// PASS: hloom-opt: error: -p='remta': unknown pass 'remta' (at character 1). Did you mean 'remat'?
// TARGET: hloom-opt: error: --target: unknown target 'h100'. Did you mean 'h100_pcie' or 'h100_sxm'?
// PRINT: hloom-opt: error: --print-ir-after=incline: 'incline' is no pass in -p 'inline'. Did you mean 'inline'? It runs: inline.
// MISSING: errors.mlir.missing: error: cannot read: No such file or directory
func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.multiply %x,    %y : tensor<2xf32>
  return %0 : tensor<2xf32>
}
