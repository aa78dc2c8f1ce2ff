// RUN: hloom-opt %s --split-input-file --verify-diagnostics

func.func @on_the_line(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %y : tensor<2xf32> // expected-error {{use of undeclared SSA value name}}
}

// -----

func.func @next_line(%x: tensor<2xf32>) -> tensor<3xf32> {
  // expected-error@+1 {{type of return operand 0 ('tensor<2xf32>') doesn't match function result type ('tensor<3xf32>') in function @next_line}}
  return %x : tensor<2xf32>
}

// -----

func.func @line_before(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %y : tensor<2xf32>
  // expected-error@-1 {{undeclared SSA value}}
  return %0 : tensor<2xf32>
}

// -----

func.func @above(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "stablehlo.transpose"(%x) {permutation = array<i64: 1>} : (tensor<2xf32>) -> tensor<2xf32>
  // expected-error@above {{attribute permutation must be a permutation of [0] but got 1}}
  // expected-error@above {{'stablehlo.transpose' op failed to infer returned types}}
  return %0 : tensor<2xf32>
}

// -----

func.func @below(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-error@below {{attribute permutation must be a permutation of [0]}}
  // expected-error@below {{failed to infer returned types}}
  %0 = "stablehlo.transpose"(%x) {permutation = array<i64: 1>} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

func.func @regular_expression(%x: tensor<2xf32>) -> tensor<3xf32> {
  // expected-error-re@+1 {{type of return operand {{[0-9]+}} ('tensor<{{.*}}>') doesn't match}}
  return %x : tensor<2xf32>
}

// -----

// expected-note@+1 {{see existing symbol definition here}}
func.func @note() { return }
// expected-error@+1 {{redefinition of symbol named 'note'}}
func.func @note() { return }

// -----

func.func @nothing_wrong() {
  return
}
