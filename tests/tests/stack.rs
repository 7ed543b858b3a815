//! `snaprig run`, `card exec`, `include` and `build-sink`, as a user calls them.

mod host;
mod offload;

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use host::on_each_platform;
use offload::{Program, SNAPRIG, text};

fn snaprig(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", SNAPRIG]).args(arguments);
    command.stdin(Stdio::null()).output().expect("it starts")
}

/// A shell, with `snaprig` in `$snaprig`.
fn shell(script: &str) -> Output {
    shell_under(&[], script)
}

/// A shell that these start.
fn shell_under(wrapper: &[&str], script: &str) -> Output {
    Command::new("timeout")
        .arg("120")
        .args(wrapper)
        .args(["sh", "-c", script])
        .env("snaprig", SNAPRIG)
        .stdin(Stdio::null())
        .output()
        .expect("a shell")
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn run_passes_on_what_a_program_prints_and_how_it_ends() {
    let output = snaprig(&[
        "run",
        "--",
        "sh",
        "-c",
        "test -S $SNAPRIG_RIG/scif.sock && exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    let output = snaprig(&["run", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(137), "{}", text(&output));
    let output = snaprig(&[
        "run", "--cards", "3", "--memory", "128M,64M", "--", SNAPRIG, "card", "list",
    ]);
    assert_eq!(printed(&output).lines().count(), 3, "{}", text(&output));
    let output = snaprig(&["run", "--", "/nowhere/program"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("/nowhere/program"),
        "{}",
        text(&output)
    );
}

#[test]
fn a_rig_ends_with_the_program_that_it_is_for() {
    let output = snaprig(&["run", "--", "sh", "-c", "echo $SNAPRIG_RIG"]);
    let rig = printed(&output);
    assert!(
        rig.starts_with('/') && !Path::new(rig.trim()).exists(),
        "{rig}"
    );
}

#[test]
fn a_rig_in_the_background_serves_a_shell_until_it_is_ended() {
    // Of the shell's own session; of one that began outside of its PID namespace, as in a container.
    let namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork"];
    for wrapper in [&["setsid", "--wait"][..], &namespace] {
        serves_a_shell(wrapper);
    }
}

fn serves_a_shell(wrapper: &[&str]) {
    let program = Program::compile("coi/hello_world", "", "");
    program.check("golden", &[], &[]);
    let directory = program.directory().display();
    let script = format!(
        "eval \"$($snaprig run --env)\"
         {directory}/host {directory}/sink && {directory}/host {directory}/sink
         kill $SNAPRIG_RIG_PID; while [ -e $SNAPRIG_RIG ]; do sleep 0.01; done"
    );
    let text = printed(&shell_under(wrapper, &script));
    assert_eq!(text.matches("Hello from the sink!").count(), 2, "{text}");
}

fn a_program_on_a_card_has_our_stdio_its_libraries_and_its_status(platform: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("on_card.c");
    let text = r#"
        #include <scif.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            uint16_t nodes[8], self = 99;
            char line[64] = "";
            int count = scif_get_nodeIDs(nodes, 8, &self);
            if (fgets(line, sizeof(line), stdin) == NULL) return 1;
            printf("%s, node %d of %d: %s", argv[argc - 1], self, count, line);
            fprintf(stderr, "goodbye\n");
            return 40 + self;
        }
    "#;
    fs::write(&source, text).expect("written");
    let program = directory.path().join("on_card");
    let compiled = shell(&format!(
        "gcc -Wall -Werror {} $($snaprig include --scif) -o {}",
        source.display(),
        program.display()
    ));
    printed(&compiled);
    for node in 1..=2 {
        let mut child = Command::new("timeout")
            .args([
                "120",
                SNAPRIG,
                "run",
                "--cards",
                "2",
                "--platform",
                platform,
                "--",
            ])
            .args([SNAPRIG, "card", "exec", "--node", &node.to_string(), "--"])
            .arg(&program)
            .args(["an argument", "the last"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(b"a line of ours\n").expect("read");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            printed,
            format!("the last, node {node} of 3: a line of ours\n")
        );
        assert!(offload::text(&output).contains("goodbye"));
        assert_eq!(output.status.code(), Some(40 + node));
    }
}

#[test]
fn card_exec_says_what_is_wrong() {
    let output = Command::new(SNAPRIG)
        .args(["card", "exec", "--", "/bin/true"])
        .env_remove("SNAPRIG_RIG")
        .output()
        .expect("it starts");
    assert!(text(&output).contains("SNAPRIG_RIG"), "{}", text(&output));
    for (arguments, expected) in [
        (&["--", "/nowhere/program"][..], "/nowhere/program"),
        (&["--", "/etc/passwd"], "no ELF file"),
        (
            &["--node", "9", "--", "/bin/true"],
            "there is no card 9: the rig has card 1\n",
        ),
        (
            &["--rig", "/nowhere", "--", "/bin/true"],
            "no rig runs in /nowhere",
        ),
    ] {
        let command = [&["run", "--", SNAPRIG, "card", "exec"], arguments].concat();
        let output = snaprig(&command);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains(expected), "{}", text(&output));
    }
    let output = snaprig(&[
        "run",
        "--",
        SNAPRIG,
        "card",
        "exec",
        "--",
        "/bin/sh",
        "-c",
        "kill -11 $$",
    ]);
    assert_eq!(output.status.code(), Some(128 + 11), "{}", text(&output));
}

#[test]
fn programs_on_a_card_may_load_libscif_by_themselves() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("program");
    let source = directory.path().join("program.c");
    let code = r#"
        #include <dlfcn.h>
        #include <stdint.h>
        #include <stdio.h>
        int main(void) {
            void *library = dlopen("libscif.so.0", RTLD_NOW);
            if (!library) { puts(dlerror()); return 1; }
            int (*node_ids)(uint16_t *, int, uint16_t *);
            *(void **)&node_ids = dlsym(library, "scif_get_nodeIDs");
            uint16_t nodes[8], self;
            int count = node_ids(nodes, 8, &self);
            printf("node %d of %d\n", self, count);
            return 0;
        }
    "#;
    fs::write(&source, code).expect("written");
    let mut gcc = Command::new("gcc");
    gcc.arg("-o").args([&program, &source]);
    assert!(gcc.status().expect("gcc").success());
    let program = program.to_str().expect("a path");
    let output = snaprig(&["run", "--", SNAPRIG, "card", "exec", "--", program]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("node 1 of 2"), "{}", text(&output));
}

#[test]
fn sinks_may_be_of_c_plus_plus() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("sink.cpp");
    let text = r#"
        #include <intel-coi/sink/COIPipeline_sink.h>
        #include <intel-coi/sink/COIProcess_sink.h>
        #include <sink/COIBuffer_sink.h>
        #include <string>
        int main() { COIPipelineStartExecutingRunFunctions(); COIProcessWaitForShutdown(); return 0; }
        COINATIVELIBEXPORT void run(uint32_t, void **, uint64_t *, void *, uint16_t, void *, uint16_t) {
            throw std::string("never called");
        }
    "#;
    fs::write(&source, text).expect("written");
    let output = shell(&format!(
        "cd {} && $snaprig build-sink sink.cpp -o sink -std=c++17 && nm -D sink",
        directory.path().display()
    ));
    assert!(
        printed(&output).contains(" T run"),
        "{}",
        offload::text(&output)
    );
}

on_each_platform! {
    a_program_on_a_card_has_our_stdio_its_libraries_and_its_status
}
