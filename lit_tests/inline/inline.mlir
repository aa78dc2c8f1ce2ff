// What inline puts in the place of a call.
// RUN: hloom-opt %s -p inline --split-input-file | filecheck %s
// RUN: hloom-opt %s -p inline --split-input-file --debug-info | filecheck %s --check-prefix=NAMES
// Twice is once.
// RUN: hloom-opt %s -p inline --split-input-file --debug-info -o %t && \
// RUN:   hloom-opt %t -p inline --split-input-file --debug-info | diff %t -

// The body takes the call's place, and the private function goes.
// A name is the call's and the operation's own; an operation without one has the call's.
// CHECK-LABEL: func.func public @one_call
// NAMES-LABEL: func.func public @one_call
func.func public @one_call(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0:2 = call @sine_and_sum(%x, %y) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) loc("jit(f)/jvp()/jit(g)")
  // CHECK-NEXT: %[[S:.*]] = stablehlo.sine %arg0
  // CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[S]], %arg1
  // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[A]], %[[S]]
  // NAMES: stablehlo.sine %arg0 : tensor<4xf32> loc(#[[SIN:loc[0-9]*]])
  // NAMES: stablehlo.add {{.*}} loc(#[[ADD:loc[0-9]*]])
  // NAMES: stablehlo.multiply {{.*}} loc(#[[MUL:loc[0-9]*]])
  %1 = stablehlo.multiply %0#1, %0#0 : tensor<4xf32> loc("jit(f)/mul")
  // CHECK-NEXT: return %[[M]]
  return %1 : tensor<4xf32>
  // CHECK-NOT: func.func
  // NAMES-DAG: #[[SIN]] = loc("jit(f)/jvp()/jit(g)/sin"
  // NAMES-DAG: #[[ADD]] = loc("jit(f)/jvp()/jit(g)"(#
  // NAMES-DAG: #[[MUL]] = loc("jit(f)/mul"
}
func.func private @sine_and_sum(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.sine %a : tensor<4xf32> loc("sin")
  %1 = stablehlo.add %0, %b : tensor<4xf32> loc("train.py":3:1)
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// -----

// Calls within callees: names grow by a part a level, and each call has its own.
// CHECK-LABEL: func.func public @calls_in_calls
// NAMES-LABEL: func.func public @calls_in_calls
func.func public @calls_in_calls(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @outer(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(f)/first")
  %1 = call @outer(%0) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(f)/second")
  // CHECK-NEXT: %[[S:.*]] = stablehlo.sine %arg0
  // CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[S]]
  // CHECK-NEXT: %[[T:.*]] = stablehlo.sine %[[N]]
  // CHECK-NEXT: %[[O:.*]] = stablehlo.negate %[[T]]
  // CHECK-NEXT: return %[[O]]
  // NAMES: stablehlo.sine {{.*}} loc(#[[FIRST:loc[0-9]*]])
  // NAMES: stablehlo.sine {{.*}} loc(#[[SECOND:loc[0-9]*]])
  return %1 : tensor<4xf32>
  // CHECK-NOT: func.func
  // NAMES-DAG: #[[FIRST]] = loc("jit(f)/first/jit(h)/sin"
  // NAMES-DAG: #[[SECOND]] = loc("jit(f)/second/jit(h)/sin"
}
func.func private @outer(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @inner(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(h)")
  %1 = stablehlo.negate %0 : tensor<4xf32> loc("neg")
  return %1 : tensor<4xf32>
}
func.func private @inner(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32> loc("sin")
  return %0 : tensor<4xf32>
}

// -----

// In the bodies of loops and branches; operations in the regions of a callee are named as well.
// CHECK-LABEL: func.func public @calls_in_regions
// NAMES-LABEL: func.func public @calls_in_regions
func.func public @calls_in_regions(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[X:.*]] = %arg0)
  %0:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
    // CHECK: } do {
  } do {
    %1 = func.call @body(%i, %a) : (tensor<i32>, tensor<4xf32>) -> tensor<4xf32> loc("jit(f)/while/body/closed_call")
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    // CHECK-NEXT: %[[CASE:.*]] = "stablehlo.case"(%{{.*}}) ({
    // CHECK-NEXT: %[[S:.*]] = stablehlo.sine %[[X]]
    // CHECK-NEXT: stablehlo.return %[[S]]
    stablehlo.return %2, %1 : tensor<i32>, tensor<4xf32>
  }
  // CHECK-NEXT: }, {
  // CHECK-NEXT: stablehlo.return %[[X]]
  // CHECK-NEXT: })
  // NAMES: "stablehlo.case"
  // NAMES: stablehlo.sine {{.*}} loc(#[[SIN:loc[0-9]*]])
  return %0#1 : tensor<4xf32>
  // CHECK-NOT: call
  // CHECK-NOT: func.func
  // NAMES-DAG: #[[SIN]] = loc("jit(f)/while/body/closed_call/cond/branch_0_fun/sin"
}
func.func private @body(%i: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.case"(%i) ({
    %1 = func.call @branch(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("cond/branch_0_fun")
    stablehlo.return %1 : tensor<4xf32>
  }, {
    stablehlo.return %x : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32> loc("cond")
  return %0 : tensor<4xf32>
}
func.func private @branch(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32> loc("sin")
  return %0 : tensor<4xf32>
}

// -----

// A callee that hands its arguments back, twice and crosswise, leaves nothing behind.
// CHECK-LABEL: func.func public @arguments_handed_back
func.func public @arguments_handed_back(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0:3 = call @crosswise(%x, %y) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  // CHECK-NEXT: return %arg1, %arg0, %arg1
  return %0#0, %0#1, %0#2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  // CHECK-NOT: func.func
}
func.func private @crosswise(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  return %b, %a, %b : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A function that a composite refers to is inlined where it is called, and stays.
// CHECK-LABEL: func.func public @called_and_referred_to
func.func public @called_and_referred_to(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @region(%x) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: %[[N:.*]] = stablehlo.negate %arg0
  // CHECK-NEXT: %[[C:.*]] = stablehlo.composite "hloom.region" %[[N]] {decomposition = @region}
  %1 = stablehlo.composite "hloom.region" %0 {decomposition = @region} : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: return %[[C]]
  // CHECK: func.func private @region
  // CHECK-NEXT: %[[N:.*]] = stablehlo.negate %arg0
  // CHECK-NEXT: return %[[N]]
  return %1 : tensor<4xf32>
  // CHECK-NOT: func.func
}
func.func private @region(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @negated(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @negated(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// Private functions that nothing calls go; public ones never do.
// CHECK-LABEL: module
func.func public @nobody_calls_it(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: func.func public @nobody_calls_it
  // CHECK-NEXT: return
  // CHECK-NEXT: }
  // CHECK-NEXT: func.func public @nor_this
  // CHECK-NEXT: return
  // CHECK-NEXT: }
  // CHECK-NEXT: }
  return %x : tensor<4xf32>
}
func.func public @nor_this(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
func.func private @dead(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// Private functions that only a dead one calls go with it, though one hands its argument back.
// CHECK-LABEL: module
func.func public @a_dead_function_and_its_leaf(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: func.func public @a_dead_function_and_its_leaf
  // CHECK-NEXT: return %arg0
  // CHECK-NEXT: }
  // CHECK-NEXT: }
  return %x : tensor<4xf32>
}
func.func private @dead(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @leaf(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @leaf(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// The must-not-change case of this file: calls of a public function stay.
// CHECK-LABEL: func.func public @calls_a_public_function
func.func public @calls_a_public_function(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %[[C:.*]] = call @helper(%arg0)
  %0 = call @helper(%x) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: return %[[C]]
  // CHECK: func.func public @helper
  return %0 : tensor<4xf32>
}
func.func public @helper(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// What has a name but no source line, as in the functions of JAX itself, takes the line of its call.
// CHECK-LABEL: func.func public @line_of_the_call
// NAMES-LABEL: func.func public @line_of_the_call
func.func public @line_of_the_call(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = call @relu(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(f)/jit(relu)"("train.py":7:1))
  // NAMES: stablehlo.maximum {{.*}} loc(#[[MAX:loc[0-9]*]])
  return %0 : tensor<4xf32>
  // NAMES-DAG: #[[LINE:loc[0-9]*]] = loc("train.py":7:1)
  // NAMES-DAG: #[[MAX]] = loc("jit(f)/jit(relu)/max"(#[[LINE]]))
}
func.func private @relu(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.maximum %a, %a : tensor<4xf32> loc("max")
  return %0 : tensor<4xf32>
}
