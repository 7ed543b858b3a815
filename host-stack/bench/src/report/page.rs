//! The report: one page of HTML with all that it needs in it. What goes into it is escaped by the template's engine, which
//! goes by the template's name.

use std::{
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use minijinja::{Environment, UndefinedBehavior, Value, context, value::Serde};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::{
    figure::{Figure, spread},
    plot::{Plot, lay_out},
};
use crate::{AnyError, table::short};

const NAME: &str = "page.html";
const TEMPLATE: &str = include_str!("page.html");

/// A file that is there when it is whole.
pub struct Page {
    path: PathBuf,
    file: NamedTempFile,
}

/// What a page says of all of its figures.
#[derive(Serialize)]
pub struct Head<'a> {
    /// What was measured.
    pub title: &'a str,
    /// [`super::machine::Machine::line`].
    pub machine: &'a str,
    /// How it was measured.
    pub about: &'a str,
    /// What is below a note, which is a table of its own. Without a note there is none.
    pub note_title: &'a str,
    /// That table.
    pub note: &'a str,
}

/// A figure as the template has it.
#[derive(Serialize)]
struct Shown<'a> {
    title: &'a str,
    unit: &'a str,
    of: &'a str,
    paper: &'a str,
    series: &'a [&'static str],
    /// Each bar is of one of the series, and has no parts.
    is_grouped: bool,
    plot: Plot,
    rows: Vec<Line>,
}

/// A line of its table.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    spread: String,
    parts: Vec<String>,
    series: Vec<&'static str>,
}

impl Page {
    /// Makes sure that it can be written, before anything is measured for it.
    pub fn at(path: &Path) -> Result<Self, AnyError> {
        let named = |error| format!("{}: {error}; choose another file", path.display());
        let directory = match path.parent() {
            Some(directory) if directory != Path::new("") => directory,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(directory)
            .map_err(named)?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes it, and gives it its name.
    pub fn write(mut self, html: &str) -> Result<(), AnyError> {
        self.file.write_all(html.as_bytes())?;
        self.file.as_file().sync_all()?;
        self.file.persist(&self.path)?;
        Ok(())
    }
}

/// The page of these figures.
pub fn render(head: &Head<'_>, figures: &[Figure]) -> Result<String, AnyError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template(NAME, TEMPLATE)?;
    let figures: Vec<_> = figures.iter().map(show).collect();
    let (head, figures) = (Value::from(Serde(head)), Value::from(Serde(&figures)));
    let template = environment.get_template(NAME)?;
    Ok(template.render(context! { head, figures })?)
}

fn show(figure: &Figure) -> Shown<'_> {
    let bars = figure.groups.iter().flat_map(|group| {
        let bars = group.bars.iter();
        bars.map(|bar| (group.name, bar))
    });
    let rows = bars.map(|(name, bar)| Line {
        name,
        spread: spread(bar),
        parts: bar.parts.iter().map(|(_, value)| short(*value)).collect(),
        series: bar
            .parts
            .iter()
            .filter_map(|(series, _)| figure.series.get(*series).copied())
            .collect(),
    });
    Shown {
        title: &figure.title,
        unit: figure.unit,
        of: figure.of,
        paper: &figure.paper,
        series: &figure.series,
        is_grouped: figure.groups.iter().any(|group| group.bars.len() > 1),
        rows: rows.collect(),
        plot: lay_out(figure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::snapify::figure;

    #[test]
    fn a_page_has_all_figures() {
        let figures = figure::of_operations(&figure::tests::rows());
        let head = Head {
            title: "Snapify",
            machine: "2 processors",
            about: "3 rounds",
            note_title: "",
            note: "",
        };
        let html = render(&head, &figures).expect("a page");
        assert!(!html.contains("http://") && !html.contains("https://"));
        insta::assert_snapshot!(html);
    }

    #[test]
    fn what_goes_into_it_is_escaped() {
        let mut figures = figure::of_operations(&figure::tests::rows());
        figures[0].title = "<script>1</script>".into();
        figures[0].series[0] = "\"><i>";
        figures[0].groups[0].name = "a & b";
        let head = Head {
            title: "<i>",
            machine: "<b>",
            about: "<u>",
            note_title: "<s>",
            note: "<pre>",
        };
        let html = render(&head, &figures).expect("a page");
        for raw in [
            "<script",
            "<i>",
            "\"><i>",
            "a & b",
            "<b>",
            "<u>",
            "<s>",
            "<pre><pre>",
        ] {
            assert!(!html.contains(raw), "{raw}");
        }
        assert!(html.contains("a &amp; b"));
    }

    #[test]
    fn a_page_is_there_when_it_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("report.html");
        let page = Page::at(&path).expect("a page");
        assert!(!path.exists());
        page.write("whole").expect("it is written");
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "whole");
        let names = directory.path().read_dir().expect("a directory").count();
        assert_eq!(names, 1, "nothing else is left");
        assert!(Page::at(&directory.path().join("none/report.html")).is_err());
    }
}
