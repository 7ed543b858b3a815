//! What people read of an image.

mod support;

use snaprig_ckpt_image::{
    image::{CHUNK_MAX, Header, Options, PAGE},
    inspect::Inspection,
};
use support::{Op, Registers, header, image_with};

fn inspection() -> Inspection {
    let state = Registers {
        name: "worker\u{1b}[2J".into(),
        words: vec![0, 1],
    };
    let many = Registers {
        name: "main".into(),
        words: vec![0x7fff_ffff_ffff_f000; 8],
    };
    let ops = [
        Op::State(state),
        Op::State(many),
        Op::Pages(1, 0x400, vec![1, 2, 0, 3]),
        Op::Zeroes(1, 0x7_ffff_0000, 300_000),
        Op::Gone(2, 0x1000, 2),
        Op::Pages(70_000, 0, vec![9; 2 * CHUNK_MAX / PAGE as usize]),
    ];
    let header = Header {
        cpu_features: (0..60).map(|number| format!("feature{number}")).collect(),
        ..header()
    };
    let options = Options {
        zstd: Some(1),
        stands_for: Some("0000000000000abc".parse().unwrap()),
        ..Options::new("image")
    };
    let (bytes, _) = image_with(&header, options, &ops);
    let show = |state: &snaprig_ckpt_image::image::State| {
        let Registers { name, words } = state.decode().unwrap();
        vec![format!("thread {name}"), format!("registers {words:x?}")]
    };
    Inspection::read(&bytes[..], "/ckpt/0007/a.img", show).unwrap()
}

#[test]
fn a_table_of_80_columns() {
    let text = inspection().to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80));
    insta::assert_snapshot!(text);
}

#[test]
fn json() {
    let mut inspection = inspection();
    inspection.header.cpu_features.truncate(2);
    insta::assert_snapshot!(inspection.json());
}
