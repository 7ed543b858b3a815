use std::path::Path;
fn main() {
    let a: Vec<_> = std::env::args_os().skip(1).collect();
    let d = Path::new(&a[1]);
    let r = match a[0].to_str().unwrap() {
        "launch" => snaprig_ckpt::launch(d, &a[2..], None),
        "restart" => snaprig_ckpt::restart(d, None),
        "dump" => {
            snaprig_ckpt::ask(d, snaprig_ckpt::Request::Dump { kill: a.len() > 2 }).map(|r| {
                println!("{r:?}");
                0
            })
        }
        _ => panic!(),
    };
    match r {
        Ok(s) => std::process::exit(s),
        Err(e) => {
            eprintln!("{e:?}");
            std::process::exit(1)
        }
    }
}
