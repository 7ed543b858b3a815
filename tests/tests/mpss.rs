//! Projects for Xeon Phi as their authors build them, in a directory that `snaprig sdk --mpss` has laid out.

mod offload;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use offload::{SNAPRIG, text};
use tempfile::TempDir;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures");

/// A directory as MPSS has it, and one to build in.
struct Scene {
    directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let scene = Self { directory };
        let output = snaprig(&["sdk", "--mpss", scene.mpss().to_str().expect("text")]);
        assert!(output.status.success(), "{}", text(&output));
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(Path::new(printed.trim_end()), scene.mpss());
        scene
    }

    fn mpss(&self) -> PathBuf {
        self.directory.path().join("mpss")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).expect("written");
    }

    /// A shell in the directory to build in, which has read what a user's would; fixtures in `$fixtures`.
    fn shell(&self, script: &str) -> Output {
        let script = format!("set -e; . '{}'\n{script}", self.environment().display());
        Command::new("timeout")
            .args(["240", "sh", "-c", &script])
            .current_dir(self.directory.path())
            .env("snaprig", SNAPRIG)
            .env("fixtures", FIXTURES)
            .stdin(Stdio::null())
            .output()
            .expect("a shell")
    }

    fn environment(&self) -> PathBuf {
        self.mpss().join("environment-setup-k1om-mpss-linux")
    }
}

fn snaprig(arguments: &[&str]) -> Output {
    let mut command = Command::new(SNAPRIG);
    command.args(arguments).stdin(Stdio::null());
    command.output().expect("it starts")
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const HELLO: &str = "Hello from the sink!\nsink: main returned 3, termination code 0\n";

#[test]
#[cfg_attr(
    not(has_program = "pkg-config"),
    ignore = "pkg-config is not installed"
)]
#[cfg_attr(not(has_program = "make"), ignore = "make is not installed")]
fn a_project_of_make_and_pkg_config_builds_with_intels_and_the_cards_compilers() {
    let scene = Scene::new();
    scene.write(
        "Makefile",
        "all: host sink\n\
         host: $(fixtures)/coi/hello_world/host.c\n\
         \ticc -O3 -xHost -vec-report2 -openmp -wd1419 -no-offload $< `pkg-config --cflags --libs coi_host` -o $@\n\
         sink: $(fixtures)/coi/hello_world/sink.c\n\
         \tx86_64-k1om-linux-gcc -O2 $< -rdynamic -lcoi_device -o $@\n\
         \tx86_64-k1om-linux-strip -g $@\n",
    );
    let output = scene.shell("make; $snaprig run -- ./host sink");
    let printed = printed(&output);
    assert!(printed.ends_with(HELLO), "{printed}");
}

#[test]
#[cfg_attr(not(has_program = "cmake"), ignore = "cmake is not installed")]
#[cfg_attr(not(has_program = "make"), ignore = "make is not installed")]
fn a_project_of_cmake_finds_headers_and_libraries() {
    let scene = Scene::new();
    scene.write(
        "CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.5)\n\
         project(hello C)\n\
         find_path(COI_INCLUDE_DIR source/COIProcess_source.h PATH_SUFFIXES intel-coi)\n\
         find_library(COI_HOST_LIBRARY coi_host REQUIRED)\n\
         find_library(COI_DEVICE_LIBRARY NAMES coi_device REQUIRED)\n\
         find_package(PkgConfig REQUIRED)\n\
         pkg_check_modules(SCIF REQUIRED scif)\n\
         include_directories(${COI_INCLUDE_DIR})\n\
         add_executable(host $ENV{fixtures}/coi/hello_world/host.c)\n\
         target_link_libraries(host ${COI_HOST_LIBRARY} ${SCIF_LDFLAGS})\n\
         add_executable(sink $ENV{fixtures}/coi/hello_world/sink.c)\n\
         set_target_properties(sink PROPERTIES ENABLE_EXPORTS ON)\n\
         target_link_libraries(sink ${COI_DEVICE_LIBRARY})\n",
    );
    let output = scene.shell(
        "cmake -S . -B build -DCMAKE_C_COMPILER=icc >log 2>&1 || { cat log; exit 1; }
         cmake --build build >log 2>&1 || { cat log; exit 1; }
         $snaprig run -- build/host build/sink",
    );
    assert_eq!(printed(&output), HELLO);
}

#[test]
fn a_program_that_is_compiled_for_the_card_knows_it_and_one_for_the_host_does_not() {
    let scene = Scene::new();
    scene.write(
        "where.cpp",
        r#"
        #include <scif.h>
        #include <intel-coi/common/COIResult_common.h>
        #include <cstdio>
        #include <string>
        #include <omp.h>
        int main() {
            uint16_t nodes[8], self = 99;
            scif_get_nodeIDs(nodes, 8, &self);
            int threads = 0;
            #pragma omp parallel num_threads(3) reduction(+:threads)
            threads += 1;
        #if defined __MIC__ || defined __k1om__
            std::string where = "card";
        #else
            std::string where = "host";
        #endif
            printf("%s %d %d\n", where.c_str(), self, threads);
        }
        "#,
    );
    let output = scene.shell(
        "icpc -qopenmp where.cpp -lscif -o host
         icc -mmic -openmp -opt-report where.cpp -lscif -o native
         $CXX -fopenmp where.cpp -lscif -o k1om
         $snaprig run -- sh -ec './host
             $snaprig card exec -- ./native; $snaprig card exec -- ./k1om'",
    );
    assert_eq!(printed(&output), "host 0 3\ncard 1 3\ncard 1 3\n");
}

#[test]
fn what_is_not_there_is_refused_by_name_and_files_of_others_are_left_alone() {
    let scene = Scene::new();
    scene.write("empty.c", "int main(void) { return 0; }\n");
    let output = scene.shell("icc -mkl empty.c");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("-mkl: there is no MKL here"),
        "{}",
        text(&output)
    );
    let output = scene.shell("icc -nonsense empty.c");
    assert!(
        text(&output).contains("gcc: error: unrecognized"),
        "{}",
        text(&output)
    );
    // It may be laid out again.
    let mpss = scene.mpss();
    let mpss = mpss.to_str().expect("text");
    printed(&snaprig(&["sdk", "--mpss", mpss]));
    fs::remove_file(scene.mpss().join("ID")).expect("it is there");
    let output = snaprig(&["sdk", "--mpss", mpss]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("mpss: it has files of others"),
        "{}",
        text(&output)
    );
}

#[test]
fn micctrl_says_and_changes_in_what_state_cards_are() {
    let scene = Scene::new();
    let output = scene.shell(
        "$snaprig run --cards 2 -- sh -c '
             micctrl -s
             micctrl -r mic1; micctrl --status mic1
             micctrl -b mic1 || echo no
             micctrl -b mic1 2>&1 || echo no
             micctrl -S mic0; micctrl -bw mic0; micctrl -Rw
             $snaprig card kill 2; micctrl -s; micctrl -r mic1; micctrl -bw mic1
             micctrl -s mic7 2>&1 || echo no
             micctrl -s 7 2>/dev/null || echo no'",
    );
    let online = "online (mode: linux image: 6.1.0-snaprig)";
    let expected = format!(
        "mic0: {online}\nmic1: {online}\n\
         mic1: ready\nmic1: ready\n\
         mic1: {online}\n\
         [Error] mic1: card 2 is online: it cannot be plugged in\nno\n\
         mic0: ready\nmic0: {online}\nmic0: {online}\nmic1: {online}\n\
         card 2  crashed\nmic0: {online}\nmic1: lost\nmic1: ready\nmic1: {online}\n\
         [Error] mic7: no such card\nno\nno\n"
    );
    assert_eq!(printed(&output), expected);
    let output = scene.shell("env -u SNAPRIG_RIG micctrl -s");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("no rig is named"),
        "{}",
        text(&output)
    );
}

#[test]
fn micinfo_has_the_form_of_mpss_and_what_the_rig_knows() {
    let scene = Scene::new();
    let output = scene.shell(
        "$snaprig run --cards 2 --cores 3 --memory 256M,128M -- sh -c '
             $snaprig card unplug 2 >/dev/null; micinfo; micinfo -deviceInfo 0 -group Cores
             micinfo --deviceinfo 9 2>&1 || echo no'",
    );
    let printed = printed(&output);
    for line in [
        "MicInfo Utility Log\n",
        "\n        System Info\n                HOST OS                 : Linux\n",
        "\nDevice No: 0, Device Name: mic0\n\n        Version\n",
        "                Coprocessor OS Version   : 6.1.0-snaprig\n",
        "                Device ID                : 0x2250\n",
        "                Coprocessor Family       : 0x0b\n",
        "                GDDR Size                : 256 MB\n",
        "\nDevice No: 1, Device Name: mic1\n",
        "                GDDR Size                : NotAvailable\n",
        "there is no card 10: the rig has cards 1 and 2\nno\n",
    ] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
    let cores = "                Total No of Active Cores : 3\n";
    assert_eq!(printed.matches(cores).count(), 2, "{printed}");
    assert_eq!(printed.matches("GDDR Vendor").count(), 2, "{printed}");
}

#[test]
fn micnativeloadex_runs_a_program_on_a_card_of_a_rig_or_of_its_own() {
    let scene = Scene::new();
    scene.write(
        "native.c",
        r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/utsname.h>
        int main(int argc, char **argv) {
            struct utsname name;
            uname(&name);
            printf("%s %d", name.nodename, argc);
            for (int i = 1; i < argc; i++) printf(" %s", argv[i]);
            printf(" %s %s\n", getenv("ONE"), getenv("HOME") ? "HOME" : "no HOME");
            return 7;
        }
        "#,
    );
    let output = scene.shell(
        "icc -mmic native.c -o native
         $snaprig run --cards 2 -- sh -c '
             micnativeloadex ./native -d 1 -a \"--flag  2\" -e \"ONE=1 TWO=2\"; echo $?
             micnativeloadex ./native -d 2 2>&1 || echo no
             micnativeloadex ./native -e ONE 2>&1 || echo no'
         micnativeloadex native || echo $?",
    );
    let printed = printed(&output);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[..2], ["mic1 3 --flag 2 1 no HOME", "7"], "{printed}");
    assert!(lines[2].contains("there is no card 3"), "{printed}");
    assert!(lines[4].contains("-e ONE: not NAME=VALUE"), "{printed}");
    assert_eq!(lines[6..], ["mic0 1 (null) no HOME", "7"], "{printed}");
}

#[test]
fn libmicmgmt_says_what_the_rig_has() {
    let scene = Scene::new();
    scene.write(
        "cards.c",
        r#"
        #include <miclib.h>
        #include <stdio.h>

        static void show(const char *what, int result) {
            if (result != E_MIC_SUCCESS) printf("%s: %d, %s\n", what, result, mic_get_error_string());
        }

        static void show_card(int number) {
            struct mic_device *device;
            if (mic_open_device(&device, number) != E_MIC_SUCCESS) return show("open", E_MIC_INTERNAL);
            uint32_t type = 0;
            mic_get_device_type(device, &type);
            char state[4] = "", whole[16] = "";
            size_t size = sizeof(state);
            mic_get_sysfs_attribute(device, "state", state, &size);
            printf("%s: type %u, %s (%zu)", mic_get_device_name(device), type, state, size);
            size = sizeof(whole);
            mic_get_sysfs_attribute(device, "state", whole, &size);
            int ready = -1;
            mic_in_ready_state(device, &ready);
            printf(", %s, ready: %d\n", whole, ready);

            struct mic_device_mem *memory;
            struct mic_cores_info *cores;
            uint32_t value = 0;
            int result = mic_get_memory_info(device, &memory);
            show("memory", result);
            if (result == E_MIC_SUCCESS) {
                mic_get_memory_size(memory, &value);
                printf("memory: %u KiB\n", value);
                show("speed", mic_get_memory_speed(memory, &value));
                mic_free_memory_info(memory);
            }
            result = mic_get_cores_info(device, &cores);
            show("cores", result);
            if (result == E_MIC_SUCCESS) {
                mic_get_cores_count(cores, &value);
                printf("cores: %u\n", value);
                mic_free_cores_info(cores);
            }
            struct mic_thermal_info *thermal;
            int valid = -1;
            show("thermal", mic_get_thermal_info(device, &thermal));
            mic_is_die_temp_valid(thermal, &valid);
            printf("a temperature: %d, %d\n", valid, mic_get_die_temp(thermal, &value));
            mic_free_thermal_info(thermal);
            struct mic_processor_info *processor;
            uint16_t family = 0, extended = 9;
            mic_get_processor_info(device, &processor);
            mic_get_processor_family(processor, &family, &extended);
            printf("family: %x %x\n", family, extended);
            mic_free_processor_info(processor);
            mic_close_device(device);
        }

        int main(void) {
            struct mic_devices_list *list;
            int result = mic_get_devices(&list), count = -1, number = -1;
            if (result != E_MIC_SUCCESS) {
                show("cards", result);
                return result == E_MIC_DRIVER_NOT_LOADED ? 3 : 1;
            }
            mic_get_ndevices(list, &count);
            printf("cards: %d\n", count);
            for (int i = 0; i < count; i++) {
                mic_get_device_at_index(list, i, &number);
                show_card(number);
            }
            show("beyond", mic_get_device_at_index(list, count, &number));
            mic_free_devices(list);
            struct mic_device *device;
            show("no card", mic_open_device(&device, 9));
            show("nothing", mic_get_device_type(NULL, NULL));
            return 0;
        }
        "#,
    );
    let output = scene.shell(
        "icc -Wall -Werror cards.c `pkg-config --cflags --libs micmgmt` -o cards
         $snaprig run --cards 2 --cores 3 --memory 256M,128M -- sh -ec '
             $snaprig card unplug 2 >/dev/null; ./cards'
         LD_LIBRARY_PATH=$CMAKE_PREFIX_PATH/lib64 ./cards || echo $?",
    );
    let expected = "cards: 2\n\
         mic0: type 1, onl (7), online, ready: 0\n\
         memory: 262144 KiB\n\
         speed: 5, mic_get_memory_speed: a card of a rig has no such thing\n\
         cores: 3\n\
         a temperature: 0, 5\n\
         family: b 0\n\
         mic1: type 1, rea (6), ready, ready: 1\n\
         memory: 14, mic1 is not online\n\
         cores: 14, mic1 is not online\n\
         a temperature: 0, 5\n\
         family: b 0\n\
         beyond: 11, there are 2 cards\n\
         no card: 3, there is no card mic9\n\
         nothing: 1, a pointer is NULL\n\
         cards: 7, no rig: SNAPRIG_RIG is not set; `snaprig run -- PROGRAM` starts one\n\
         3\n";
    assert_eq!(printed(&output), expected);
}

#[test]
fn a_rig_has_the_files_of_sysfs() {
    let output = Command::new("timeout")
        .args([
            "120", SNAPRIG, "run", "--cores", "3", "--memory", "256M", "--",
        ])
        .args(["sh", "-ec"])
        .arg(
            "cd $SNAPRIG_RIG/sys/class/mic/mic0
             await() { until [ \"`cat state`\" = $1 ]; do :; done; }
             cat family state memsize active_cores; ls | wc -l
             $snaprig card kill 1; await lost; test ! -e memsize
             $snaprig card reset 1; await online; cat memsize
             $snaprig card shut-down 1; await ready; cat mode",
        )
        .env("snaprig", SNAPRIG)
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let expected = "x100\nonline\n40000\n3\n14\ncard 1  crashed\ncard 1  online\n40000\ncard 1  offline\nN/A\n";
    assert_eq!(printed(&output), expected);
}
