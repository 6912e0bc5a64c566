//! Medians over a parameter of the matrix that is a number, with their intervals: a panel for each value of the other parameters.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    compare::Judgement,
    data::{CaseValues, Data, GroupKey},
    metric::Unit,
    scene::{Anchor, Axis, Dash, Paint, PlotArea, Scene, fit, legend},
};
use crate::results::analysis::cascade::theory;

const PANEL: f64 = 520.0;
const HEIGHT: f64 = 220.0;

/// A curve to stand beside what was measured.
type Model = fn(f64) -> f64;

/// Parameters with at least two different numbers, with or without a unit.
pub(super) fn parameters(data: &Data) -> Vec<String> {
    let numbers = |name: &String| {
        data.cases
            .iter()
            .all(|case| case.get(name).is_none_or(|value| number(value).is_some()))
    };
    data.varying().into_iter().filter(numbers).collect()
}

/// `10`, `0.25`, `10Mbit`, `40ms`, `1%` as a number in its base unit.
fn number(value: &str) -> Option<f64> {
    let end = value
        .find(|character: char| !matches!(character, '0'..='9' | '.' | '-'))
        .unwrap_or(value.len());
    let (digits, unit) = value.split_at(end);
    let factor = match unit.trim() {
        "" | "s" | "bit" | "B" => 1.0,
        "%" => 0.01,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "kbit" | "kB" => 1e3,
        "Mbit" | "MB" => 1e6,
        "Gbit" | "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|number| number * factor)
}

/// A panel: the other parameters, and for each family its points.
struct Panel {
    title: String,
    /// By family: where on the horizontal axis, and where the values are.
    lines: BTreeMap<usize, Vec<(f64, GroupKey)>>,
}

/// The figure; `None` where a panel would have but one place on its horizontal axis.
pub(super) fn draw(
    data: &Data,
    judgement: &Judgement,
    (measure, parameter): (usize, &str),
    unit: Unit,
) -> Option<Scene> {
    let of = data.measures.get(measure)?;
    let panels = panels(data, measure, parameter);
    if !panels
        .iter()
        .any(|panel| panel.lines.values().any(|line| line.len() > 1))
    {
        return None;
    }
    let across = if panels.len() > 1 { 2.0 } else { 1.0 };
    let mut scene = Scene::new(
        across * PANEL,
        30.0,
        format!("{} by {parameter}", of.title()),
    );
    let families = panels.iter().flat_map(|panel| panel.lines.keys().copied());
    let families: BTreeSet<usize> = families.collect();
    let name = |family: usize| (data.family_name(family).to_owned(), family);
    let names: Vec<(String, usize)> = families.into_iter().map(name).collect();
    let room = across * PANEL - 24.0;
    let top = scene.head + legend(&mut scene, (12.0, 44.0), room, &names) + 4.0;
    let x = Ticks::new(data, parameter, &panels);
    let model = model(&of.metric, parameter);
    for (place, panel) in (0_u32..).zip(&panels) {
        let corner = (
            f64::from(place % 2) * PANEL,
            top + f64::from(place / 2) * (HEIGHT + 84.0),
        );
        panel.draw(
            &mut scene,
            corner,
            (data, judgement, unit),
            (&x, &of.meaning.title, model),
        );
        scene.height = corner.1 + HEIGHT + 80.0;
    }
    Some(scene)
}

fn panels(data: &Data, measure: usize, parameter: &str) -> Vec<Panel> {
    let mut panels: Vec<(CaseValues, Panel)> = Vec::new();
    let varying = data.varying();
    for place in data.groups.keys().filter(|place| place.measure == measure) {
        let Some(case) = data.cases.get(place.case) else {
            continue;
        };
        let Some(x) = case.get(parameter).and_then(|value| number(value)) else {
            continue;
        };
        let others: CaseValues = case
            .iter()
            .filter(|(name, _)| *name != parameter && varying.contains(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let known = panels
            .iter()
            .position(|(case, _)| *case == others)
            .unwrap_or_else(|| {
                let words: Vec<String> = others
                    .iter()
                    .map(|(name, value)| format!("{name} {value}"))
                    .collect();
                panels.push((
                    others,
                    Panel {
                        title: words.join(" · "),
                        lines: BTreeMap::new(),
                    },
                ));
                panels.len() - 1
            });
        if let Some((_, panel)) = panels.get_mut(known) {
            panel
                .lines
                .entry(data.series(place.subject))
                .or_default()
                .push((x, *place));
        }
    }
    let mut panels: Vec<Panel> = panels.into_iter().map(|(_, panel)| panel).collect();
    for line in panels.iter_mut().flat_map(|panel| panel.lines.values_mut()) {
        line.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    panels
}

/// The horizontal axis: the parameter's own values as marks.
struct Ticks {
    axis: Axis,
    marks: Vec<(f64, String)>,
    title: String,
}

impl Ticks {
    fn new(data: &Data, parameter: &str, panels: &[Panel]) -> Self {
        let values = data.cases.iter().filter_map(|case| case.get(parameter));
        let mut marks: Vec<(f64, String)> = values
            .filter_map(|text| Some((number(text)?, text.clone())))
            .collect();
        marks.sort_by(|one, other| one.0.total_cmp(&other.0));
        marks.dedup();
        let xs = panels.iter().flat_map(Panel::xs);
        let axis = Axis::linear(xs, Unit::new("", 1.0), "");
        Self {
            axis,
            marks,
            title: parameter.to_owned(),
        }
    }
}

impl Panel {
    /// Every value that must be on the vertical axis.
    fn ends(&self, judgement: &Judgement) -> Vec<f64> {
        let summaries = self
            .lines
            .values()
            .flatten()
            .filter_map(|(_, place)| judgement.summaries.get(place));
        let ends = |summary: &super::compare::Summary| {
            let interval = summary
                .interval
                .map(|interval| [interval.low, interval.high]);
            [summary.center]
                .into_iter()
                .chain(interval.into_iter().flatten())
                .collect::<Vec<_>>()
        };
        summaries.flat_map(ends).collect()
    }

    fn xs(&self) -> impl Iterator<Item = f64> + '_ {
        self.lines.values().flatten().map(|point| point.0)
    }

    fn draw(
        &self,
        scene: &mut Scene,
        (left, top): (f64, f64),
        told: (&Data, &Judgement, Unit),
        (x, label, model): (&Ticks, &str, Option<Model>),
    ) {
        let title = fit(&self.title, 12.0, PANEL - 90.0);
        scene.text(
            (left + 72.0, top + 14.0),
            &title,
            12.0,
            Paint::Ink,
            Anchor::Start,
        );
        let curve: Vec<(f64, f64)> = model
            .map(|model| self.xs().map(|x| (x, model(x))).collect())
            .unwrap_or_default();
        let ends = self.ends(told.1).into_iter();
        let ends = ends.chain(curve.iter().map(|point| point.1));
        let frame = PlotArea {
            left: left + 72.0,
            top: top + 24.0,
            width: PANEL - 72.0 - 24.0,
            height: HEIGHT,
            x: x.axis.clone(),
            y: Axis::over(ends, told.2, label),
        };
        frame.draw_y(scene);
        x.draw(scene, &frame);
        draw_model(scene, &frame, &curve);
        for (family, line) in &self.lines {
            draw_line(scene, &frame, (*family, line), told);
        }
    }
}

impl Ticks {
    fn draw(&self, scene: &mut Scene, frame: &PlotArea) {
        let bottom = frame.top + frame.height;
        for (value, text) in &self.marks {
            let x = frame.across(*value);
            scene.line(
                &[(x, frame.top), (x, bottom)],
                Paint::Grid,
                1.0,
                Dash::Solid,
            );
            scene.text((x, bottom + 16.0), text, 11.0, Paint::Muted, Anchor::Middle);
        }
        let middle = frame.left + frame.width / 2.0;
        scene.text(
            (middle, bottom + 34.0),
            &self.title,
            11.0,
            Paint::Muted,
            Anchor::Middle,
        );
    }
}

fn draw_model(scene: &mut Scene, frame: &PlotArea, curve: &[(f64, f64)]) {
    let mut points: Vec<(f64, f64)> = curve.iter().map(|(x, y)| frame.at(*x, *y)).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    if let Some(last) = points.last() {
        let at = (last.0 - 12.0, last.1 + 4.0);
        scene.text(
            at,
            "f₂(n), the paper's model",
            11.0,
            Paint::Muted,
            Anchor::End,
        );
        scene.line(&points, Paint::Muted, 1.6, Dash::Dotted);
    }
}

fn draw_line(
    scene: &mut Scene,
    frame: &PlotArea,
    (family, line): (usize, &[(f64, GroupKey)]),
    (data, judgement, unit): (&Data, &Judgement, Unit),
) {
    let paint = Paint::Series(family);
    let known =
        |(x, place): &(f64, GroupKey)| Some((*x, place.subject, judgement.summaries.get(place)?));
    let known: Vec<_> = line.iter().filter_map(known).collect();
    let points: Vec<(f64, f64)> = known
        .iter()
        .map(|(x, _, summary)| frame.at(*x, summary.center))
        .collect();
    scene.line(&points, paint, 2.2, Dash::of(family));
    for ((x, subject, summary), at) in known.iter().zip(points) {
        if let Some(interval) = summary.interval {
            let ends = [frame.at(*x, interval.low), frame.at(*x, interval.high)];
            scene.line(&ends, paint, 1.4, Dash::Solid);
            for end in ends {
                scene.line(
                    &[(end.0 - 3.5, end.1), (end.0 + 3.5, end.1)],
                    paint,
                    1.4,
                    Dash::Solid,
                );
            }
        }
        let hint = format!(
            "{}: {}, n = {}",
            data.label(*subject),
            unit.format_with_unit(summary.center),
            summary.n
        );
        scene.dot(at, (4.0, 1.0), paint, &hint);
    }
}

/// Paper 001 §3: what tunnels that acknowledge every second packet add to a data packet.
fn model(metric: &str, parameter: &str) -> Option<Model> {
    let asked = metric == "ack_frames_per_packet" && parameter == "hops";
    asked.then_some(|hops| theory(2.0, hops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cascade_of_acknowledgements_is_the_papers_sum() {
        let sum = |n: i32| 0.5 * (1..=n).map(|i| 1.5_f64.powi(i)).sum::<f64>();
        for n in 0..=4 {
            assert!((theory(2.0, f64::from(n)) - sum(n)).abs() < 1e-9, "{n}");
        }
    }

    #[test]
    fn parameters_with_units_are_numbers_in_order() {
        assert_eq!(number("10Mbit"), Some(1e7));
        assert_eq!(number("40ms"), Some(0.04));
        assert_eq!(number("1%"), Some(0.01));
        assert_eq!(number("naive"), None);
    }
}
