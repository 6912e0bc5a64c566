//! A figure of what a page of measurements tells (`hoplite-lab plot FILE.toml`): for each case a row for each subject, a dot for its value and a
//! line for its spread. The figures of a campaign that is at hand are made by the report; this is for those whose samples are not kept.

use std::{fs, path::Path};

use serde::Deserialize;

use super::{
    metric::Unit,
    render::{Target, svg},
    scene::{Anchor, Axis, Dash, Paint, PlotArea, Scene, fit, width},
};
use crate::{
    cli::PlotArgs,
    errors::{Complaint, Failure},
};

const WIDTH: f64 = 820.0;
const ROW: f64 = 20.0;
const TEXT: f64 = 12.0;

/// What is drawn, as it stands in a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    /// Above the figure.
    title: String,
    /// What the values are, and their unit.
    axis: String,
    /// Those that are compared, in one order for all cases.
    subjects: Vec<String>,
    case: Vec<Case>,
}

/// Where the subjects were compared.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// For each subject its value, alone or followed by the ends of its spread (by the upper one, where only that was taken); nothing where it
    /// has none.
    values: Vec<Vec<f64>>,
}

/// A value and its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    value: f64,
    low: f64,
    high: f64,
}

/// Draws each file into an SVG beside it.
///
/// # Errors
/// A file that cannot be read or is wrong, or an SVG that cannot be written.
pub fn run(args: &PlotArgs) -> Result<(), Failure> {
    for file in &args.files {
        let drawn = draw(file)?;
        let path = file.with_extension("svg");
        fs::write(&path, drawn).map_err(|error| super::unwritten(&path, &error))?;
    }
    Ok(())
}

fn draw(file: &Path) -> Result<String, Failure> {
    let wrong = |why: String| {
        let doing = format!("reading {}", file.display());
        let remedy = "docs/report.md says what a figure's file holds";
        Failure::Wrong(vec![Complaint::new(doing, why, remedy)])
    };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let measured = Measured::parse(&text).map_err(wrong)?;
    Ok(svg(&measured.scene(), Target::File))
}

impl Measured {
    fn parse(text: &str) -> Result<Self, String> {
        let measured: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for case in &measured.case {
            let (found, wanted) = (case.values.len(), measured.subjects.len());
            if found != wanted {
                let name = &case.name;
                return Err(format!(
                    "case {name} has {found} values for {wanted} subjects"
                ));
            }
            for values in &case.values {
                point(values).map_err(|why| format!("case {}: {why}", case.name))?;
            }
        }
        Ok(measured)
    }

    /// The rows that have a value: subject's number and point.
    fn rows(case: &Case) -> impl Iterator<Item = (usize, Point)> {
        let points = case.values.iter().enumerate();
        points.filter_map(|(subject, values)| Some((subject, point(values).ok()??)))
    }

    fn scene(&self) -> Scene {
        let labels = self.subjects.iter().map(|label| width(label, TEXT));
        let left = labels.fold(0.0, f64::max).clamp(60.0, 260.0) + 24.0;
        let points = || self.case.iter().flat_map(Self::rows);
        let lines = self.case.len() + points().count();
        let values = points().flat_map(|(_, point)| [point.low, point.value, point.high]);
        let mut scene = Scene::new(WIDTH, 30.0, self.title.clone());
        let height = lines as f64 * ROW;
        scene.height = scene.head + 4.0 + height + 44.0;
        let frame = PlotArea {
            left,
            top: scene.head + 4.0,
            width: WIDTH - left - 76.0,
            height,
            x: Axis::over(values, Unit::new("", 1.0), &self.axis),
            y: Axis::shares(""),
        };
        frame.draw_x(&mut scene);
        let mut top = frame.top;
        for case in &self.case {
            scene.bold((12.0, top + 15.0), &case.name, TEXT);
            top += ROW;
            for (subject, point) in Self::rows(case) {
                let label = self.subjects.get(subject).map_or("", String::as_str);
                row(&mut scene, &frame, top + ROW / 2.0, (label, subject, point));
                top += ROW;
            }
        }
        scene
    }
}

/// `None` for no value at all.
fn point(values: &[f64]) -> Result<Option<Point>, String> {
    let point = match *values {
        [] => return Ok(None),
        [value] => Point {
            value,
            low: value,
            high: value,
        },
        [value, high] => Point {
            value,
            low: value,
            high,
        },
        [value, low, high] => Point { value, low, high },
        _ => return Err("more than a value and the two ends of its spread".to_owned()),
    };
    let Point { value, low, high } = point;
    if low <= value && value <= high {
        return Ok(Some(point));
    }
    Err(format!("{value} is not between {low} and {high}"))
}

fn row(
    scene: &mut Scene,
    frame: &PlotArea,
    middle: f64,
    (label, subject, point): (&str, usize, Point),
) {
    let (base, ink) = (middle + 4.0, Paint::Ink);
    let label = fit(label, TEXT, frame.left - 22.0);
    scene.text((frame.left - 10.0, base), &label, TEXT, ink, Anchor::End);
    let paint = Paint::Series(subject);
    let [from, at, to] = [point.low, point.value, point.high].map(|value| frame.across(value));
    if from < to {
        scene.line(&[(from, middle), (to, middle)], paint, 2.0, Dash::Solid);
    }
    let told = Unit::new("", 1.0).format(point.value);
    scene.dot((at, middle), (4.5, 1.0), paint, &told);
    let right = frame.left + frame.width + 10.0;
    scene.text((right, base), &told, TEXT, ink, Anchor::Start);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_the_measured_pages_are_what_their_files_say() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements/plots");
        let mut seen = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_some_and(|end| end == "toml") {
                let kept = fs::read_to_string(file.with_extension("svg")).unwrap();
                let now = draw(&file).unwrap();
                assert!(now == kept, "run `hoplite-lab plot {}`", file.display());
                seen += 1;
            }
        }
        assert!(seen > 0, "there are some");
    }

    #[test]
    fn each_subject_has_a_value_of_its_own_and_a_spread_around_it() {
        let text = |values: &str| {
            format!(
                "title = \"\"\naxis = \"s\"\nsubjects = [\"a\", \"b\"]\n[[case]]\nname = \"c\"\nvalues = {values}\n"
            )
        };
        let wrong = |values| Measured::parse(&text(values)).unwrap_err();
        assert!(wrong("[[1.0]]").contains("1 values for 2 subjects"));
        assert!(wrong("[[1.0], [2.0, 3.0, 4.0]]").contains("2 is not between 3 and 4"));
        assert!(wrong("[[1.0], [1.0, 1.0, 1.0, 1.0]]").contains("more than"));
        assert!(wrong("[[nan], []]").contains("NaN is not between"));
        let drawn = Measured::parse(&text("[[1.0, 2.0], []]")).unwrap().scene();
        assert!(svg(&drawn, Target::File).contains(">a<"));
    }
}
