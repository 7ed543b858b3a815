//! The paper's workloads (Table 5) as offload programs: their results are golden, bit for bit, on every
//! platform and with any number of threads.

mod host;
mod offload;

use host::on_each_platform;
use offload::Program;

fn check(platform: &str, folder: &str, golden: &str, arguments: &[&str]) {
    let program = Program::compile(&format!("workloads/{folder}"), "", "-fopenmp");
    for cores in ["1", "3"] {
        let options = ["--platform", platform, "--cores", cores];
        program.check(golden, &options, arguments);
    }
}

fn molecular_dynamics(platform: &str) {
    check(platform, "md", "golden", &[]);
}

fn monte_carlo(platform: &str) {
    check(platform, "mc", "golden", &[]);
}

fn matrix_multiplications(platform: &str) {
    check(platform, "sg", "golden", &[]);
}

fn semantic_search(platform: &str) {
    check(platform, "ss", "golden", &[]);
}

fn k_means(platform: &str) {
    check(platform, "km", "golden", &[]);
}

fn lu_of_many_zones(platform: &str) {
    check(platform, "mz", "golden.lu", &["--solver", "0"]);
}

fn sp_of_many_zones(platform: &str) {
    check(platform, "mz", "golden.sp", &["--solver", "1"]);
}

fn bt_of_many_zones(platform: &str) {
    check(platform, "mz", "golden.bt", &["--solver", "2"]);
}

#[test]
fn an_unknown_option_is_refused_with_those_that_there_are() {
    let program = Program::compile("workloads/sg", "", "-fopenmp");
    assert!(program.directory().join("host").is_file());
    let output = program.run(&[], &["--siez", "8K"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(offload::text(&output).contains("--size"));
}

on_each_platform! {
    molecular_dynamics
    monte_carlo
    matrix_multiplications
    semantic_search
    k_means
    lu_of_many_zones
    sp_of_many_zones
    bt_of_many_zones
}
