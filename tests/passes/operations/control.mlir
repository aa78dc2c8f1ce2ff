// Loops, branches, calls, barriers: what the passes rewrite most.
func.func @loop() -> (tensor<i32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %trips = stablehlo.constant dense<3> : tensor<i32>
  %x = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %fixed = stablehlo.constant dense<0.5> : tensor<4xf32>
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %k = %fixed) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    cond {
    %1 = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = func.call @body(%c, %k) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %2, %k : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %0#0, %0#1, %0#2 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
}
func.func private @body(%c: tensor<4xf32>, %k: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.multiply %c, %k : tensor<4xf32>
  %1 = stablehlo.multiply %c, %k : tensor<4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// A scan and its backward scan: what the first stacks, the second reads.
func.func @main() -> (tensor<2x2xf32>, tensor<2x2xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %stack = stablehlo.constant dense<0.0> : tensor<3x2x2xf32>
  %x = stablehlo.constant dense<[[0.5, -0.5], [0.25, 1.0]]> : tensor<2x2xf32>
  %w = stablehlo.constant dense<[[0.5, 0.25], [-0.5, 0.75]]> : tensor<2x2xf32>
  %0:4 = stablehlo.while(%i = %zero, %c = %x, %sines = %stack, %cosines = %stack) : tensor<i32>, tensor<2x2xf32>, tensor<3x2x2xf32>, tensor<3x2x2xf32>
    cond {
    %trips = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %none = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32> loc("jvp()/while/body/dot_general")
    %3 = stablehlo.sine %2 : tensor<2x2xf32> loc("jvp()/while/body/sin")
    %4 = stablehlo.cosine %2 : tensor<2x2xf32> loc("jvp()/while/body/cos")
    %5 = stablehlo.reshape %3 : (tensor<2x2xf32>) -> tensor<1x2x2xf32>
    %6 = stablehlo.dynamic_update_slice %sines, %5, %i, %none, %none : (tensor<3x2x2xf32>, tensor<1x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x2xf32>
    %7 = stablehlo.reshape %4 : (tensor<2x2xf32>) -> tensor<1x2x2xf32>
    %8 = stablehlo.dynamic_update_slice %cosines, %7, %i, %none, %none : (tensor<3x2x2xf32>, tensor<1x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x2xf32>
    %9 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %9, %3, %6, %8 : tensor<i32>, tensor<2x2xf32>, tensor<3x2x2xf32>, tensor<3x2x2xf32>
  } loc("jvp()/while")
  %1:2 = stablehlo.while(%i = %zero, %g = %0#1) : tensor<i32>, tensor<2x2xf32>
    cond {
    %trips = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %none = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %last = stablehlo.constant dense<2> : tensor<i32>
    %at = stablehlo.subtract %last, %i : tensor<i32>
    %2 = stablehlo.dynamic_slice %0#2, %at, %none, %none, sizes = [1, 2, 2] : (tensor<3x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x2x2xf32>) -> tensor<2x2xf32>
    %4 = stablehlo.dynamic_slice %0#3, %at, %none, %none, sizes = [1, 2, 2] : (tensor<3x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %5 = stablehlo.reshape %4 : (tensor<1x2x2xf32>) -> tensor<2x2xf32>
    %6 = stablehlo.multiply %g, %5 : tensor<2x2xf32> loc("transpose(jvp())/while/body/mul")
    %7 = stablehlo.add %6, %3 : tensor<2x2xf32> loc("transpose(jvp())/while/body/add")
    %8 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %8, %7 : tensor<i32>, tensor<2x2xf32>
  } loc("transpose(jvp())/while")
  return %0#1, %1#1 : tensor<2x2xf32>, tensor<2x2xf32>
}

// -----

func.func @branches() -> (tensor<2xf32>, tensor<2xf32>) {
  %x = stablehlo.constant dense<[1.0, -2.0]> : tensor<2xf32>
  %p = stablehlo.constant dense<true> : tensor<i1>
  %n = stablehlo.constant dense<1> : tensor<i32>
  %0 = "stablehlo.if"(%p) ({
    %2 = func.call @twice(%x) : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %2 : tensor<2xf32>
  }, {
    stablehlo.return %x : tensor<2xf32>
  }) : (tensor<i1>) -> tensor<2xf32>
  %1 = "stablehlo.case"(%n) ({
    stablehlo.return %x : tensor<2xf32>
  }, {
    %2 = func.call @twice(%0) : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %2 : tensor<2xf32>
  }) : (tensor<i32>) -> tensor<2xf32>
  return %0, %1 : tensor<2xf32>, tensor<2xf32>
}
func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// Two public functions: none of them is the program.
func.func @one() -> tensor<2xf32> {
  %x = stablehlo.constant dense<[1.0, -2.0]> : tensor<2xf32>
  %z = stablehlo.constant dense<0.0> : tensor<2xf32>
  %0:2 = stablehlo.optimization_barrier %x, %z : tensor<2xf32>, tensor<2xf32>
  %1 = stablehlo.add %0#0, %0#1 : tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func @other() -> tensor<2xf32> {
  %0 = call @one() : () -> tensor<2xf32>
  %1 = stablehlo.composite "test.halved" %0 {decomposition = @halved} : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func private @halved(%x: tensor<2xf32>) -> tensor<2xf32> {
  %h = stablehlo.constant dense<0.5> : tensor<2xf32>
  %0 = stablehlo.multiply %x, %h : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// not interpreted: no public function with results
func.func private @nobody_calls_it(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}

// -----

// not interpreted: no public function with results
module {
}

// -----

// not interpreted: no public function with results
func.func @nothing() {
  return
}

// -----

func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.tuple %x, %x : tuple<tensor<2xf32>, tensor<2xf32>>
  %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<2xf32>, tensor<2xf32>>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
