//! The paper's workloads (Table 5) as offload programs: their results are golden, bit for bit, on every
//! platform and with any number of threads.

mod host;
mod offload;

use host::platforms;
use offload::Program;

fn check(folder: &str, golden: &str, arguments: &[&str]) {
    let program = Program::compile(&format!("workloads/{folder}"), "", "-fopenmp");
    for platform in platforms() {
        for cores in ["1", "3"] {
            let options = ["--platform", platform, "--cores", cores];
            program.check(golden, &options, arguments);
        }
    }
}

#[test]
fn molecular_dynamics() {
    check("md", "golden", &[]);
}

#[test]
fn monte_carlo() {
    check("mc", "golden", &[]);
}

#[test]
fn matrix_multiplications() {
    check("sg", "golden", &[]);
}

#[test]
fn semantic_search() {
    check("ss", "golden", &[]);
}

#[test]
fn k_means() {
    check("km", "golden", &[]);
}

#[test]
fn lu_of_many_zones() {
    check("mz", "golden.lu", &["--solver", "0"]);
}

#[test]
fn sp_of_many_zones() {
    check("mz", "golden.sp", &["--solver", "1"]);
}

#[test]
fn bt_of_many_zones() {
    check("mz", "golden.bt", &["--solver", "2"]);
}

#[test]
fn an_unknown_option_is_refused_with_those_that_there_are() {
    let program = Program::compile("workloads/sg", "", "-fopenmp");
    assert!(program.directory().join("host").is_file());
    let output = program.run(&[], &["--siez", "8K"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(offload::text(&output).contains("--size"));
}
