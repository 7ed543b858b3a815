//! What an image says of its processes, for people: lines of at most 80 columns.

use std::{fs::File, path::Path};

use snaprig_ckpt_image::inspect::Inspection;
use snaprig_resources::event::Reporter;
use snaprig_resources::{
    self,
    error::{Error, Result},
    state::{Backing, Body, Process, Tree},
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
    let resources = snaprig_resources::all(&Reporter::default());
    let spaces = resources.iter().flat_map(|kind| kind.describe_spaces(tree));
    lines.extend(spaces);
    for (number, file) in tree.files.iter().enumerate() {
        let locks = match file.locks.len() {
            0 => String::new(),
            count => format!("; {count} locks"),
        };
        let what = resources.iter().find_map(|kind| kind.describe(file));
        let what = what.unwrap_or_else(|| format!("{:?}", file.kind));
        lines.push(format!("file {number}: {what}{locks}"));
    }
    lines.extend(resources.iter().flat_map(|kind| kind.describe_all(tree)));
    for line in &mut lines {
        if let Some((end, _)) = line.char_indices().nth(COLUMNS) {
            line.truncate(end);
        }
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
