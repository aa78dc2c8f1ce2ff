// RUN: not hloom-opt %s --split-input-file --verify-diagnostics 2>&1 | filecheck %s

// CHECK: verify-diagnostics-wrong.mlir:5:10: error: unexpected error: use of undeclared SSA value name
func.func @unexpected(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %y : tensor<2xf32>
}

// -----

// CHECK: verify-diagnostics-wrong.mlir:12:13: error: expected error "nothing says this" was not produced
func.func @missing() {
  return // expected-error {{nothing says this}}
}

// -----

// CHECK: verify-diagnostics-wrong.mlir:20:6: error: 'error' diagnostic emitted when expecting a 'warning'
// CHECK: verify-diagnostics-wrong.mlir:20:6: error: expected warning "undeclared" was not produced
func.func @wrong_severity(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-warning@+1 {{undeclared}}
  return %y : tensor<2xf32>
}

// -----

// CHECK: verify-diagnostics-wrong.mlir:30:10: error: unexpected error: use of undeclared SSA value name
// CHECK: verify-diagnostics-wrong.mlir:29:6: error: expected error "undeclared" was not produced
func.func @wrong_line(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-error {{undeclared}}
  return %y : tensor<2xf32>
}

// -----

// CHECK: verify-diagnostics-wrong.mlir:37:13: error: cannot read this expectation; write it as '{{expected}}-error[-re][@+N|@-N|@above|@below|@unknown] {{[{][{]message[}][}]}}' up to the end of the line
func.func @malformed() {
  return // expected-error {message}
}
