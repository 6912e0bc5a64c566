//! Box plots, distributions (ECDF) and values over time, each as a scene.

use std::collections::BTreeMap;

use super::{
    compare::Judgement,
    data::{Data, GroupKey},
    metric::{Unit, digits},
    scene::{Anchor, Axis, Dash, Paint, PlotArea, Scene, fit, legend, width},
};
use crate::results::{
    analysis::statistics::{ecdf, quantile_of_sorted, sorted},
    store::{Attempt, Verdict},
};

// Box plots: a row for each subject in each case. The box holds the middle half, the whiskers end at the last value within 1.5 boxes
// (Tukey, 1977), values beyond are dots; few values are all dots.

const WIDTH: f64 = 1040.0;
/// The opacity of a dot that others shine through.
const FAINT: f64 = 0.55;
const ROW: f64 = 26.0;
/// With this many values or fewer, each is drawn.
const FEW: usize = 12;

/// The figure of these cases; `None` if there are no values.
pub(super) fn box_plot(
    data: &Data,
    judgement: &Judgement,
    measure: usize,
    cases: &[usize],
    unit: Unit,
) -> Option<Scene> {
    let of = data.measures.get(measure)?;
    let rows = rows(data, measure, cases);
    let values = rows
        .iter()
        .filter_map(Row::place)
        .flat_map(|place| data.values(place));
    let values: Vec<f64> = values.collect();
    if values.is_empty() {
        return None;
    }
    let label = rows
        .iter()
        .map(|row| width(&row.label, 12.0))
        .fold(0.0, f64::max);
    let left = label.clamp(60.0, 260.0) + 24.0;
    let mut scene = Scene::new(WIDTH, 30.0, of.title());
    let height: f64 = rows.iter().map(|row| row.height).sum();
    scene.height = scene.head + 4.0 + height + 44.0;
    let frame = PlotArea {
        left,
        top: scene.head + 4.0,
        width: WIDTH - left - 96.0,
        height,
        x: Axis::over(values.into_iter(), unit, &of.meaning.title),
        y: Axis::shares(""),
    };
    frame.draw_x(&mut scene);
    let mut top = frame.top;
    for row in &rows {
        row.draw(&mut scene, &frame, top, (data, judgement, unit));
        top += row.height;
    }
    Some(scene)
}

/// A case's name, or a subject's box.
struct Row {
    label: String,
    height: f64,
    place: Option<GroupKey>,
}

fn rows(data: &Data, measure: usize, cases: &[usize]) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in cases {
        let title = data.case_title(*case);
        if !title.is_empty() {
            rows.push(Row {
                label: title,
                height: ROW,
                place: None,
            });
        }
        for subject in data.present(measure, *case) {
            let place = Some(GroupKey {
                measure,
                case: *case,
                subject,
            });
            rows.push(Row {
                label: data.label(subject).to_owned(),
                height: ROW,
                place,
            });
        }
    }
    rows
}

impl Row {
    fn place(&self) -> Option<GroupKey> {
        self.place
    }

    fn draw(
        &self,
        scene: &mut Scene,
        frame: &PlotArea,
        top: f64,
        (data, judgement, unit): (&Data, &Judgement, Unit),
    ) {
        let Some(place) = self.place else {
            scene.bold((12.0, top + 19.0), &self.label, 12.0);
            return;
        };
        let middle = top + self.height / 2.0;
        let label = fit(&self.label, 12.0, frame.left - 22.0);
        scene.text(
            (frame.left - 10.0, middle + 4.0),
            &label,
            12.0,
            Paint::Ink,
            Anchor::End,
        );
        let values = sorted(&data.values(place));
        let paint = Paint::Series(data.series(place.subject));
        if let Some(spread) = Spread::of(&values) {
            let mut strip = Strip {
                scene,
                frame,
                middle,
                paint,
                unit,
            };
            strip.draw(&spread);
        }
        if let Some(summary) = judgement.summaries.get(&place) {
            let median = unit.format_with_unit(summary.median);
            let right = frame.left + frame.width + 10.0;
            scene.text(
                (right, middle + 4.0),
                &median,
                12.0,
                Paint::Ink,
                Anchor::Start,
            );
        }
    }
}

/// What a box plot tells of values, which are sorted.
struct Spread<'v> {
    values: &'v [f64],
    low: f64,
    median: f64,
    high: f64,
}

impl<'v> Spread<'v> {
    fn of(values: &'v [f64]) -> Option<Self> {
        let at = |share| quantile_of_sorted(values, share);
        Some(Self {
            values,
            low: at(0.25)?,
            median: at(0.5)?,
            high: at(0.75)?,
        })
    }

    /// Whether the whiskers reach as far as a value.
    fn reaches(&self, value: f64) -> bool {
        let reach = 1.5 * (self.high - self.low);
        (self.low - reach..=self.high + reach).contains(&value)
    }

    /// Where the whiskers end.
    fn ends(&self) -> Option<[f64; 2]> {
        let mut within = self.values.iter().filter(|value| self.reaches(**value));
        let first = *within.next()?;
        Some([first, *within.next_back().unwrap_or(&first)])
    }

    /// Values that have a dot.
    fn dots(&self) -> impl Iterator<Item = f64> {
        let few = self.values.len() <= FEW;
        let values = self.values.iter().copied();
        values.filter(move |value| few || !self.reaches(*value))
    }

    fn tell(&self, unit: Unit) -> String {
        let [median, low, high] =
            [self.median, self.low, self.high].map(|v| unit.format_with_unit(v));
        let n = self.values.len();
        format!("median {median}, middle half {low} to {high}, n = {n}")
    }
}

/// The strip of a figure in which a box is drawn.
struct Strip<'a> {
    scene: &'a mut Scene,
    frame: &'a PlotArea,
    middle: f64,
    paint: Paint,
    unit: Unit,
}

impl Strip<'_> {
    fn draw(&mut self, spread: &Spread<'_>) {
        if let Some([first, last]) = spread.ends() {
            self.along(first, spread.low);
            self.along(spread.high, last);
            self.upright(first, 4.0, 1.6);
            self.upright(last, 4.0, 1.6);
        }
        self.middle_half(spread);
        for value in spread.dots() {
            let (at, hint) = (self.at(value), self.unit.format_with_unit(value));
            self.scene.dot(at, (2.6, FAINT), self.paint, &hint);
        }
        self.upright(spread.median, 9.0, 3.4);
    }

    fn at(&self, value: f64) -> (f64, f64) {
        (self.frame.across(value), self.middle)
    }

    /// A line from value to value.
    fn along(&mut self, from: f64, to: f64) {
        let ends = [self.at(from), self.at(to)];
        self.scene.line(&ends, self.paint, 1.6, Dash::Solid);
    }

    /// A line across the strip at a value.
    fn upright(&mut self, value: f64, half: f64, width: f64) {
        let (x, y) = self.at(value);
        let ends = [(x, y - half), (x, y + half)];
        self.scene.line(&ends, self.paint, width, Dash::Solid);
    }

    /// The box; one that would be too thin to see is a little wider.
    fn middle_half(&mut self, spread: &Spread<'_>) {
        let left = self.frame.across(spread.low);
        let right = self.frame.across(spread.high).max(left + 1.5);
        let (top, bottom) = (self.middle - 8.0, self.middle + 8.0);
        let corners = [(left, top), (right, top), (right, bottom), (left, bottom)];
        let hint = spread.tell(self.unit);
        self.scene.area(&corners, self.paint, 0.28, &hint);
        let [first, ..] = corners;
        let edge = [&corners[..], &[first]].concat();
        self.scene.line(&edge, self.paint, 1.4, Dash::Solid);
    }
}

// ECDF: the distribution of a measure in one case, which share of the values is not above a value, a step line for each subject.

const NARROW: f64 = 440.0;

/// A line of the figure.
struct Curve {
    name: String,
    series: usize,
    values: Vec<f64>,
}

/// The figure; `None` if no subject has a value.
pub(super) fn ecdf_plot(data: &Data, measure: usize, case: usize, unit: Unit) -> Option<Scene> {
    let subjects = data.present(measure, case).into_iter();
    let curve = |subject| whole(data, (measure, case, subject));
    distributions(
        data,
        (measure, case),
        unit,
        &subjects.map(curve).collect::<Vec<_>>(),
    )
}

/// Of a subject.
fn whole(data: &Data, (measure, case, subject): (usize, usize, usize)) -> Curve {
    Curve {
        name: data.label(subject).to_owned(),
        series: data.series(subject),
        values: data.values(GroupKey {
            measure,
            case,
            subject,
        }),
    }
}

/// The figure with a line for each egress of a subject; `None` if no subject has several here.
pub(super) fn ecdf_by_egress(
    data: &Data,
    measure: usize,
    case: usize,
    unit: Unit,
) -> Option<Scene> {
    let parts = data.by_egress(measure);
    let (mut curves, mut series, mut several) = (Vec::new(), data.families.len(), false);
    for subject in data.present(measure, case) {
        let before = curves.len();
        for (measure, egress) in &parts {
            let part = whole(data, (*measure, case, subject));
            if !part.values.is_empty() {
                let name = format!("{} by {egress}", part.name);
                curves.push(Curve {
                    name,
                    series,
                    ..part
                });
                series += 1;
            }
        }
        several |= curves.len() > before + 1;
        if curves.len() == before {
            curves.push(whole(data, (measure, case, subject)));
        }
    }
    several
        .then(|| distributions(data, (measure, case), unit, &curves))
        .flatten()
}

fn distributions(
    data: &Data,
    (measure, case): (usize, usize),
    unit: Unit,
    curves: &[Curve],
) -> Option<Scene> {
    let of = data.measures.get(measure)?;
    let x = Axis::over(
        curves.iter().flat_map(|curve| curve.values.iter().copied()),
        unit,
        &of.meaning.title,
    );
    let case = data.case_title(case);
    let mut scene = Scene::new(NARROW, 28.0, of.title());
    let mut top = scene.head;
    if !case.is_empty() {
        let case = fit(&case, 12.0, NARROW - 24.0);
        scene.text((12.0, top + 14.0), &case, 12.0, Paint::Ink, Anchor::Start);
        top += 18.0;
    }
    let names: Vec<(String, usize)> = curves
        .iter()
        .map(|curve| (curve.name.clone(), curve.series))
        .collect();
    top += legend(&mut scene, (12.0, top + 14.0), NARROW - 24.0, &names) + 8.0;
    scene.height = top + 190.0 + 48.0;
    let y = Axis::shares("Share of values up to x");
    let frame = PlotArea {
        left: 62.0,
        top,
        width: NARROW - 62.0 - 18.0,
        height: 190.0,
        x,
        y,
    };
    frame.draw(&mut scene);
    for curve in curves {
        scene.line(
            &steps(&frame, &curve.values),
            Paint::Series(curve.series),
            2.2,
            Dash::of(curve.series),
        );
    }
    Some(scene)
}

/// From the left edge at nought to the right edge at one.
pub(super) fn steps(frame: &PlotArea, values: &[f64]) -> Vec<(f64, f64)> {
    let bottom = frame.top + frame.height;
    let (mut points, mut level) = (Vec::new(), bottom);
    for (value, share) in ecdf(values) {
        let (x, y) = frame.at(value, share);
        points.extend([(x, level), (x, y)]);
        level = y;
    }
    if let Some(first) = points.first_mut() {
        first.1 = bottom;
    }
    points.push((frame.left + frame.width, level));
    points
}

// Values over the campaign's time show whether the machine had moods, and whether they hit all subjects alike.

/// Every value of a measure over its own median, so that all cases and subjects share one scale; plain values if there is one case only.
pub(super) fn time_series(
    data: &Data,
    judgement: &Judgement,
    measure: usize,
    unit: Unit,
) -> Option<Scene> {
    let of = data.measures.get(measure)?;
    let relative = data.cases_of(measure).len() > 1;
    let mut points: BTreeMap<usize, Vec<(f64, f64, String)>> = BTreeMap::new();
    for (place, values) in data
        .groups
        .iter()
        .filter(|(place, _)| place.measure == measure)
    {
        let median = judgement.summaries.get(place)?.median;
        let base = if relative { median } else { 1.0 };
        let label = format!(
            "{} {}",
            data.label(place.subject),
            data.case_title(place.case)
        );
        for point in values {
            let value = if base == 0.0 {
                f64::NAN
            } else {
                point.value / base
            };
            let hint = format!(
                "{label}: {}, repetition {}",
                unit.format_with_unit(point.value),
                point.repetition
            );
            points.entry(data.series(place.subject)).or_default().push((
                point.at - data.campaign.began,
                value,
                hint,
            ));
        }
    }
    points
        .values_mut()
        .for_each(|all| all.retain(|point| point.1.is_finite()));
    points.retain(|_, all| !all.is_empty());
    let label = if relative {
        "Value over its median"
    } else {
        of.meaning.title.as_str()
    };
    let unit = if relative { Unit::new("", 1.0) } else { unit };
    let name = |series: &usize| (data.family_name(*series).to_owned(), *series);
    let names: Vec<(String, usize)> = points.keys().map(name).collect();
    let title = format!("{} over the campaign", of.title());
    Some(cloud(&title, &names, &points, (unit, label)))
}

type Points = BTreeMap<usize, Vec<(f64, f64, String)>>;

fn cloud(
    title: &str,
    names: &[(String, usize)],
    points: &Points,
    (unit, label): (Unit, &str),
) -> Scene {
    let mut scene = Scene::new(WIDTH, 30.0, title);
    let mut top = scene.head;
    if !names.is_empty() {
        top += legend(&mut scene, (12.0, top + 14.0), WIDTH - 24.0, names) + 6.0;
    }
    let all = || points.values().flatten();
    let times = Unit::new("minutes since its beginning", 1.0 / 60.0);
    let frame = PlotArea {
        left: 72.0,
        top,
        width: WIDTH - 72.0 - 20.0,
        height: 180.0,
        x: Axis::linear(all().map(|point| point.0).chain([0.0]), times, ""),
        y: Axis::over(all().map(|point| point.1), unit, label),
    };
    frame.draw(&mut scene);
    for (series, points) in points {
        for (at, value, hint) in points {
            scene.dot(
                frame.at(*at, *value),
                (2.8, FAINT),
                Paint::Series(*series),
                hint,
            );
        }
    }
    scene.height = top + 180.0 + 44.0;
    scene
}

/// How late the emulator was in every attempt, accepted or not.
pub(super) fn lateness(data: &Data) -> Option<Scene> {
    let names = [("accepted", 0), ("refused by the gate", 1), ("failed", 2)];
    let mut points = Points::new();
    for attempt in data
        .attempts
        .iter()
        .filter(|attempt| attempt.health.released > 0)
    {
        let series = match attempt.verdict {
            Verdict::Ok => 0,
            Verdict::Invalid => 1,
            Verdict::Failed => 2,
        };
        points.entry(series).or_default().push(late(data, attempt));
    }
    let there = names
        .into_iter()
        .filter(|(_, series)| points.contains_key(series));
    let names: Vec<(String, usize)> = there
        .map(|(name, series)| (name.to_owned(), series))
        .collect();
    let title = "How late the emulator was: 99th percentile of each attempt";
    (!points.is_empty()).then(|| cloud(title, &names, &points, (Unit::new("µs", 1.0), "Late")))
}

/// `–` where it is not known.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| digits(share * 100.0) + " %")
}

fn late(data: &Data, attempt: &Attempt) -> (f64, f64, String) {
    let health = &attempt.health;
    let hint = format!(
        "p99 {} µs, at most {} µs, {} late, load {}, programs waited {} of the time",
        digits(health.late_us_p99),
        digits(health.late_us_max),
        percent(health.late_share),
        digits(health.load[0]),
        percent(health.cpu_pressure)
    );
    (
        attempt.began - data.campaign.began,
        health.late_us_p99,
        hint,
    )
}
