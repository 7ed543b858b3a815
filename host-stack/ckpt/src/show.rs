//! What an image says of its processes, for people: lines of at most 80 columns.

use std::{fs::File, path::Path};

use snaprig_ckpt_image::inspect::Inspection;

use crate::{
    error::{Error, Result},
    state::{Backing, Body, Kind, OpenFile, Process, Segment, Sysv, Tree},
};

/// Longest line.
const COLUMNS: usize = 78;

/// Reads an image, all of which is verified.
pub fn inspect(image: &Path) -> Result<Inspection> {
    let name = image.display().to_string();
    let file = File::open(image).map_err(|source| Error::io(name.clone(), source))?;
    let shown = Inspection::read(file, &name, |section| match section.decode::<Tree>() {
        Ok(tree) => lines(&tree),
        Err(error) => vec![error.to_string()],
    })?;
    Ok(shown)
}

fn lines(tree: &Tree) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>5} {:>7} {:>7} {:>7} {:>7} {:>5} {:>5}  program",
        "space", "process", "parent", "threads", "session", "areas", "files"
    )];
    lines.extend(tree.processes.iter().map(process));
    for shared in &tree.shared {
        let name = shared
            .name
            .as_deref()
            .map_or("anonymous".into(), String::from_utf8_lossy);
        lines.push(format!(
            "{:>5} shared memory, {} bytes: {name}",
            shared.space, shared.size
        ));
    }
    if let Some(sysv) = &tree.sysv {
        lines.extend(self::sysv(sysv));
    }
    for (number, file) in tree.files.iter().enumerate() {
        let locks = match file.locks.len() {
            0 => String::new(),
            count => format!("; {count} locks"),
        };
        lines.push(format!("file {number}: {}{locks}", self::file(file)));
    }
    for (number, pipe) in tree.pipes.iter().enumerate() {
        let bytes: usize = pipe.contents.iter().map(|part| part.bytes.len()).sum();
        let name = pipe.fifo.as_ref().map_or(String::new(), |fifo| {
            format!(": {}", String::from_utf8_lossy(&fifo.path))
        });
        lines.push(format!("pipe {number}: {bytes} bytes in it{name}"));
    }
    for (number, terminal) in tree.terminals.iter().enumerate() {
        let [rows, columns, ..] = terminal.look.size;
        lines.push(format!(
            "terminal {number}: /dev/pts/{}, {columns} by {rows}",
            terminal.number
        ));
    }
    for line in &mut lines {
        if let Some((end, _)) = line.char_indices().nth(COLUMNS) {
            line.truncate(end);
        }
    }
    lines
}

fn sysv(sysv: &Sysv) -> Vec<String> {
    let mut lines = Vec::new();
    for Segment {
        object,
        space,
        size,
        huge_bytes,
    } in &sysv.segments
    {
        let (id, key) = (object.id, object.key);
        let pages = match huge_bytes {
            0 => String::new(),
            bytes => format!(", huge pages of {} kB", bytes >> 10),
        };
        lines.push(format!(
            "{space:>5} System V shared memory {id}, key {key:#x}, {size} bytes{pages}"
        ));
    }
    for set in &sysv.sets {
        let (id, key, count) = (set.object.id, set.object.key, set.values.len());
        lines.push(format!("semaphores {id}, key {key:#x}: {count}"));
    }
    for queue in &sysv.queues {
        let (id, key, count) = (queue.object.id, queue.object.key, queue.messages.len());
        lines.push(format!("queue {id}, key {key:#x}: {count} messages"));
    }
    lines
}

fn process(process: &Process) -> String {
    let Process {
        pid,
        space,
        parent,
        session,
        ..
    } = process;
    let Some(body) = &process.body else {
        let status = process.zombie.unwrap_or(0);
        return format!("{space:>5} {pid:>7} {parent:>7} has ended, with wait status {status:#x}");
    };
    let (threads, areas, files) = (body.threads.len(), body.areas.len(), body.descriptors.len());
    let exe = String::from_utf8_lossy(&body.exe.path);
    let (program, mapped) = (exe.rsplit('/').next().unwrap_or_default(), libraries(body));
    format!(
        "{space:>5} {pid:>7} {parent:>7} {threads:>7} {session:>7} {areas:>5} {files:>5}  {program}, {mapped} files mapped"
    )
}

fn libraries(body: &Body) -> usize {
    let files = body.areas.iter().filter_map(|area| match &area.backing {
        Backing::File { file, .. } => Some(&file.path),
        _ => None,
    });
    files.collect::<std::collections::BTreeSet<_>>().len()
}

fn file(file: &OpenFile) -> String {
    match &file.kind {
        Kind::Stdio(number) => format!("standard descriptor {number} of the supervisor"),
        Kind::Path {
            path,
            offset,
            contents,
            unlinked,
            ..
        } => {
            let saved = contents.map_or(String::new(), |contents| {
                format!(", {} bytes saved", contents.size)
            });
            let gone = if *unlinked { ", without a name" } else { "" };
            format!("{} at {offset}{saved}{gone}", String::from_utf8_lossy(path))
        }
        Kind::Memory { shared, offset } => format!("shared memory {shared} at {offset}"),
        Kind::Pipe(number) => match file.flags & libc::O_ACCMODE {
            libc::O_RDONLY => format!("pipe {number}, to read"),
            _ => format!("pipe {number}, to write"),
        },
        Kind::Terminal { terminal, master } => match master {
            true => format!("terminal {terminal}, the side of who serves it"),
            false => format!("terminal {terminal}"),
        },
        Kind::Console => "the terminal of the supervisor".into(),
        Kind::Proc { pid, path, .. } => format!("/proc/{pid}{}", String::from_utf8_lossy(path)),
        Kind::Inotify(notices) => format!("inotify of {} files", notices.len()),
        Kind::Epoll { watched } => format!("epoll of {} files", watched.len()),
        Kind::Event { count, .. } => format!("eventfd, {count}"),
        Kind::Signal { mask } => format!("signalfd of {mask:#x}"),
        Kind::Timer { ticks, .. } => format!("timerfd, {ticks} times since it was read"),
        Kind::Pid(pid) => format!("process {pid}"),
        Kind::Plugin(name) => format!("plugin {name}'s"),
        Kind::Supervisor => "the connection of plugins to the supervisor".into(),
        other => format!("{other:?}"),
    }
}
