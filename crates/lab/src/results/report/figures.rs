//! Which figures there are, and their files: `figures/NAME.svg` and `.png`.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    compare::Judgement,
    data::{Data, GroupKey, Measure},
    lines,
    metric::Unit,
    plots,
    render::{self, Target, svg},
    scene::Scene,
};
use crate::{
    errors::Failure,
    results::analysis::{fingerprint::PREFIX, statistics::Statistic},
};

/// Cases in one figure of box plots: more have another figure.
const CASES: usize = 8;

/// A figure and where it belongs.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) kind: FigureKind,
    /// Whose measure it shows; `None` is the emulator's own.
    pub(super) measure: Option<usize>,
    pub(super) scene: Scene,
    /// What is seen, for those who see it.
    pub(super) caption: String,
}

/// What a figure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FigureKind {
    /// Over a parameter of the matrix; the first one's figure comes first.
    Lines {
        first: bool,
    },
    Box,
    Ecdf,
    Series,
    Lateness,
}

impl FigureKind {
    fn caption(self) -> &'static str {
        match self {
            Self::Lines { .. } => "Medians with their 95 % intervals.",
            Self::Box => {
                "Box: the middle half and the median; whiskers: up to 1.5 boxes; dots: values beyond."
            }
            Self::Ecdf => "",
            Self::Series => "Each dot is a value; several cases are drawn over their medians.",
            Self::Lateness => "Each dot is an attempt.",
        }
    }
}

/// The unit in which a measure is told over the whole page.
pub(super) fn unit(judgement: &Judgement, data: &Data, measure: usize) -> Unit {
    let medians = judgement
        .summaries
        .iter()
        .filter(|(place, _)| place.measure == measure);
    let medians: Vec<f64> = medians
        .map(|(_, summary)| summary.center.abs())
        .filter(|median| *median > 0.0)
        .collect();
    let size = crate::results::analysis::statistics::median(&medians).unwrap_or(1.0);
    let of = data.measures.get(measure);
    of.map_or_else(|| Unit::new("", 1.0), |of| of.meaning.quantity.unit(size))
}

/// All figures of a campaign, those of the measures that matter most first.
pub(super) fn figures(data: &Data, judgement: &Judgement) -> Vec<Figure> {
    let mut all = Figures::default();
    for (measure, of) in data.measures.iter().enumerate() {
        // Features of packet patterns are many, and nobody's to look at one by one.
        let pattern = of.metric.starts_with(PREFIX);
        if !pattern && !flat(data, measure) {
            all.add_measure(data, judgement, measure, of);
        }
    }
    let late = plots::lateness(data);
    all.add("emulator lateness", FigureKind::Lateness, None, late);
    all.figures
}

/// Whether there is nothing to see: all values are the same.
fn flat(data: &Data, measure: usize) -> bool {
    let groups = data
        .groups
        .iter()
        .filter(|(place, _): &(&GroupKey, _)| place.measure == measure);
    let mut values = groups.flat_map(|(_, points)| points.iter().map(|point| point.value));
    let first = values.next();
    values.all(|value| Some(value) == first)
}

#[derive(Default)]
struct Figures {
    figures: Vec<Figure>,
    names: BTreeSet<String>,
}

impl Figures {
    fn add_measure(&mut self, data: &Data, judgement: &Judgement, measure: usize, of: &Measure) {
        let unit = unit(judgement, data, measure);
        let key = of.meaning.key;
        if key {
            self.add_lines(data, judgement, (measure, of), unit);
        }
        // A share of what happened or did not has no distribution worth a look.
        if of.meaning.statistic == Statistic::Mean {
            return;
        }
        let title = format!("box {}", of.title());
        for cases in data.cases_of(measure).chunks(CASES) {
            let scene = plots::box_plot(data, judgement, measure, cases, unit);
            self.add(&title, FigureKind::Box, Some(measure), scene);
        }
        if key {
            self.add_distributions(data, (measure, of), unit);
            let title = format!("time {}", of.title());
            let scene = plots::time_series(data, judgement, measure, unit);
            self.add(&title, FigureKind::Series, Some(measure), scene);
        }
    }

    /// One over each parameter.
    fn add_lines(
        &mut self,
        data: &Data,
        judgement: &Judgement,
        (measure, of): (usize, &Measure),
        unit: Unit,
    ) {
        for (place, parameter) in lines::parameters(data).into_iter().enumerate() {
            let title = format!("lines {} by {parameter}", of.title());
            let kind = FigureKind::Lines { first: place == 0 };
            let scene = lines::draw(data, judgement, (measure, &parameter), unit);
            self.add(&title, kind, Some(measure), scene);
        }
    }

    /// One for each case, and one by egress where there are several.
    fn add_distributions(&mut self, data: &Data, (measure, of): (usize, &Measure), unit: Unit) {
        for case in data.cases_of(measure) {
            let title = format!("ecdf {} {}", of.title(), data.case_title(case));
            let scene = plots::ecdf_plot(data, measure, case, unit);
            self.add(&title, FigureKind::Ecdf, Some(measure), scene);
            let title = format!("ecdf by egress {} {}", of.title(), data.case_title(case));
            let scene = plots::ecdf_by_egress(data, measure, case, unit);
            self.add(&title, FigureKind::Ecdf, Some(measure), scene);
        }
    }

    fn add(&mut self, title: &str, kind: FigureKind, measure: Option<usize>, scene: Option<Scene>) {
        let Some(scene) = scene else { return };
        let base = slug(title);
        let mut name = base.clone();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{base}-{number}");
            number += 1;
        }
        let caption = kind.caption().to_owned();
        self.figures.push(Figure {
            name,
            kind,
            measure,
            scene,
            caption,
        });
    }
}

/// A name that every file system takes.
pub(super) fn slug(title: &str) -> String {
    let mut name = String::new();
    for character in title.chars().take(120) {
        match character {
            'a'..='z' | '0'..='9' | '.' => name.push(character),
            'A'..='Z' => name.push(character.to_ascii_lowercase()),
            _ if name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    name.trim_matches(['-', '.']).to_owned()
}

/// Writes all of them; files of an earlier report are removed.
///
/// # Errors
/// When the directory cannot be written.
pub(super) fn write(figures: &[Figure], directory: &Path) -> Result<(), Failure> {
    let folder = directory.join("figures");
    clear(&folder)
        .and_then(|()| fs::create_dir_all(&folder))
        .and_then(|()| {
            figures
                .iter()
                .try_for_each(|figure| write_one(figure, &folder))
        })
        .map_err(|error| super::unwritten(&folder, &error))
}

fn write_one(figure: &Figure, folder: &Path) -> io::Result<()> {
    let path = |end: &str| folder.join(format!("{}.{end}", figure.name));
    fs::write(path("svg"), svg(&figure.scene, Target::File))?;
    render::png(&figure.scene, &path("png"))
}

/// Only what a report writes: other files are somebody's.
fn clear(folder: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path: PathBuf = entry?.path();
        if path
            .extension()
            .is_some_and(|end| end == "svg" || end == "png")
        {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::report::{
        compare::judge,
        example::{Example, data},
    };

    #[test]
    fn a_matrix_has_lines_over_its_numbers_and_every_case_a_distribution() {
        let data = data(&Example {
            hops: vec![1, 2, 3],
            rates: vec!["10Mbit", "50Mbit"],
            ..Example::default()
        });
        let figures = figures(&data, &judge(&data, Some(0)));
        let of = |kind| figures.iter().filter(move |figure| figure.kind == kind);
        assert!(
            of(FigureKind::Lines { first: true })
                .any(|figure| figure.name == "lines-goodput-get-by-hops")
        );
        assert_eq!(
            of(FigureKind::Ecdf)
                .filter(|figure| figure.name.starts_with("ecdf-goodput"))
                .count(),
            6
        );
        assert_eq!(of(FigureKind::Lateness).count(), 1);
        assert!(figures.iter().all(|figure| figure.scene.height > 100.0));
    }

    #[test]
    fn every_figure_is_there_as_svg_and_png_and_old_ones_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let data = data(&Example {
            repetitions: 2,
            ..Example::default()
        });
        let figures = figures(&data, &judge(&data, Some(0)));
        fs::create_dir(dir.path().join("figures")).unwrap();
        for name in ["old.svg", "mine.txt"] {
            fs::write(dir.path().join("figures").join(name), "").unwrap();
        }
        write(&figures[..2], dir.path()).unwrap();
        let files = fs::read_dir(dir.path().join("figures")).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut expected = vec!["mine.txt".to_owned()];
        for figure in &figures[..2] {
            expected.extend([
                format!("{}.svg", figure.name),
                format!("{}.png", figure.name),
            ]);
        }
        expected.sort();
        assert_eq!(names, expected);
    }

    #[test]
    fn names_are_safe_for_every_file_system() {
        assert_eq!(
            slug("Goodput · ../../get <x> 10 Mbit/s"),
            "goodput-..-..-get-x-10-mbit-s"
        );
        assert_eq!(slug("../.."), "");
    }
}
