//! The paper's workloads (Table 5) as offload programs: their results are golden, bit for bit, on every
//! platform and with any number of threads.

mod host;
mod offload;
mod papers;

use host::on_each_platform;
use offload::Program;
use papers::on_each_workload;

fn check(platform: &str, folder: &str, golden: &str, arguments: &[&str]) {
    let program = Program::compile(&format!("workloads/{folder}"), "", "-fopenmp");
    for cores in ["1", "3"] {
        let options = ["--platform", platform, "--cores", cores];
        program.check(golden, &options, arguments);
    }
}

#[test]
fn an_unknown_option_is_refused_with_those_that_there_are() {
    let program = Program::compile("workloads/sg", "", "-fopenmp");
    assert!(program.directory().join("host").is_file());
    let output = program.run(&[], &["--siez", "8K"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(offload::text(&output).contains("--size"));
}

on_each_workload!(check);
