//! COI programs in C, written against the public documentation: on every platform they print what it
//! says (`fixtures/coi/*/golden`).

mod host;
mod offload;

use host::on_each_platform;
use offload::Program;

fn check(platform: &str, program: &Program, options: &[&str], arguments: &[&str]) {
    let options = [&["--platform", platform], options].concat();
    program.check("golden", &options, arguments);
}

/// Tests of programs that need nothing special, and of others.
macro_rules! programs {
    (plain: $($plain:ident)*; special: $($special:ident)*) => {
        $(
            fn $plain(platform: &str) {
                let program = Program::compile(concat!("coi/", stringify!($plain)), "", "");
                check(platform, &program, &[], &[]);
            }
        )*

        on_each_platform! { $($plain)* $($special)* }
    };
}

programs! {
    plain:
        arguments_environment
        buffer_map
        buffer_references
        buffer_space
        buffer_state
        buffer_with_user_memory
        buffers_with_pipeline_function
        callbacks_notifications
        coi_simple
        create_from_memory
        dependencies
        errors
        fork
        hello_world
        many_buffers
        many_pipelines
        misc_data_max
        multiple_pipeline_explicit
        multiple_pipeline_implicit
        older_buffer_types
        perf
        proxy_output
        read_write_async
        shutdown_timeout_force
        source_on_sink
        sub_buffers
        threads
        two_processes_one_engine
        user_event
    ;
    special:
        buffer_copy
        buffer_paging
        cpu_masks
        libraries
        libraries_v1
        sink_crash
}

fn buffer_copy(platform: &str) {
    let program = Program::compile("coi/buffer_copy", "", "");
    check(platform, &program, &["--cards", "2"], &[]);
    check(platform, &program, &["--cards", "1"], &[]);
}

fn buffer_paging(platform: &str) {
    let program = Program::compile("coi/buffer_paging", "", "");
    check(platform, &program, &["--memory", "256M"], &[]);
}

fn cpu_masks(platform: &str) {
    let program = Program::compile("coi/cpu_masks", "", "");
    check(platform, &program, &[], &[]);
    let cores = ["--cores", "2", "--threads-per-core", "4"];
    check(platform, &program, &cores, &[]);
}

fn libraries(platform: &str) {
    // libneedy.so needs a library that is gone by the time it is loaded.
    let shell = "
        library() { name=$1; shift; gcc -shared -fPIC $from/$name.c -o $name.so \"$@\"; }
        library libbase -Wl,-soname,libbase.so
        library libplug -Wl,-soname,libplug.so -L. -lbase
        library libnameless
        library libincomplete -Wl,-soname,libincomplete.so
        library libinner -Wl,-soname,libinner.so; mkdir deep; mv libinner.so deep
        library libouter -Wl,-soname,libouter.so -Ldeep -linner
        library libcount -DFIRST=100; mv libcount.so deep; library libcount
        library libcounter -Wl,-soname,libcounter.so -L. -lcount
        library libbase -Wl,-soname,libabsent.so; mv libbase.so libabsent.so
        library libbase -Wl,-soname,libneedy.so -Wl,--no-as-needed -L. -labsent; mv libbase.so libneedy.so
        library libbase -Wl,-soname,libbase.so; rm libabsent.so";
    let program = Program::compile("coi/libraries", shell, "-L. -lbase");
    let directory = program.directory().to_str().expect("UTF-8").to_owned();
    check(platform, &program, &[], &[&directory]);
}

fn sink_crash(platform: &str) {
    let program = Program::compile("coi/sink_crash", "", "");
    check(platform, &program, &[], &[]);
    // Whose crash it was is said, whoever waits for it, and what ended otherwise is none.
    let output = program.run(&["--platform", platform], &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = errors
        .lines()
        .filter_map(|line| line.strip_prefix("libcoi: sink: the offload process "))
        .filter_map(|line| line.split_once(' ').map(|(_pid, rest)| rest));
    let died = [11, 6, 8].map(|signal| format!("on card 1 died: signal {signal}"));
    assert_eq!(said.collect::<Vec<_>>(), died, "{errors}");
}

fn libraries_v1(platform: &str) {
    let shell = "gcc -shared -fPIC $from/libolder.c -o libolder.so -Wl,-soname,libolder.so";
    let program = Program::compile("coi/libraries_v1", shell, "");
    let directory = program.directory().to_str().expect("UTF-8").to_owned();
    check(platform, &program, &[], &[&directory]);
}
