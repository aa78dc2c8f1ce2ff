// Which needs are served, what is ordered with the kernels, and the timeout.
// RUN: hloom-opt %s -p barriers{timeout=1.5s} | filecheck %s
// RUN: hloom-opt %s -p barriers{entry=off} | filecheck %s --check-prefix=ENTRY
// RUN: hloom-opt %s -p barriers{exit=off} | filecheck %s --check-prefix=EXIT
// RUN: hloom-opt %s -p barriers{post_module=off} | filecheck %s --check-prefix=MODULE
// RUN: hloom-opt %s -p barriers{order=barriers} | filecheck %s --check-prefix=ORDER

module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4]>
func.func public @every_kind_of_need(%arg_x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = sdy.manual_computation(%arg_x)
      in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%x: tensor<4xf32>) {
    // CHECK: kind = "entry"{{.*}}timeout_ms = 1500
    // ENTRY-NOT: kind = "entry"
    // ENTRY: %[[X:.*]] = stablehlo.composite "hloom.add_dependency"
    // ENTRY-NEXT: stablehlo.custom_call @k1(%[[X]])
    // EXIT: kind = "entry"
    // EXIT-NOT: kind = "exit"
    // EXIT: %[[K:.*]] = stablehlo.custom_call @k1
    %1 = stablehlo.custom_call @k1(%x) {hloom.collective = "entry exit=after"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: kind = "exit"{{.*}}timeout_ms = 1500
    // ENTRY: kind = "exit"
    // EXIT-NEXT: %[[T:.*]] = stablehlo.composite "hloom.after_all" %{{.*}}, %[[K]]
    // MODULE: kind = "exit"
    // MODULE-NOT: kind = "module"
    // ORDER: %[[B:.*]]:2 = stablehlo.composite "hloom.barrier" {{.*}}kind = "exit"
    // EXIT-NEXT: %[[S:.*]] = stablehlo.sine %[[K]]
    // ORDER-NEXT: %[[S:.*]] = stablehlo.sine %[[B]]#1
    %2 = stablehlo.sine %1 : tensor<4xf32>
    // EXIT-NEXT: stablehlo.composite "hloom.add_dependency" %[[T]], %[[S]]
    // EXIT-NEXT: stablehlo.collective_permute
    // ORDER-NEXT: %[[P:.*]] = "stablehlo.collective_permute"(%[[S]])
    %3 = "stablehlo.collective_permute"(%2) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}>
        : (tensor<4xf32>) -> tensor<4xf32>
    // ORDER-NEXT: stablehlo.composite "hloom.add_dependency" %[[B]]#0, %[[P]]
    %4 = stablehlo.custom_call @k2(%3) {hloom.collective = "exit=module"}
        : (tensor<4xf32>) -> tensor<4xf32>
    // CHECK: kind = "module"{{.*}}timeout_ms = 1500
    // MODULE: sdy.return
    sdy.return %4 : tensor<4xf32>
  } : (tensor<16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}
}
