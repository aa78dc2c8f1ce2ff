// What each pass decided, as JSON, and how long it took, on stderr.
// RUN: hloom-opt %s -p inline --print-plan 2>&1 >%t.out | filecheck %s
// RUN: hloom-opt %s -p inline --timing 2>&1 >%t.out | filecheck %s --check-prefix=TIMING

// CHECK: {"step": 0, "pass": "inline", "empty": true, "summary": "{{.*}}", "plan": {{{.*}}}}

// TIMING:      // hloom-opt timing, wall milliseconds
// TIMING-NEXT: pass {{ *}}ms {{ *}}% {{ *}}plan {{ *}}apply {{ *}}verify
// TIMING-NEXT: (parse) {{ *[0-9.]+ +[0-9.]+$}}
// TIMING-NEXT: inline {{ *[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$}}
// TIMING-NEXT: (print) {{ *[0-9.]+ +[0-9.]+$}}
// TIMING-NEXT: total {{ *[0-9.]+ +100.0$}}
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
