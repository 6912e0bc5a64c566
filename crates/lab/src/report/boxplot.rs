//! Box plots of a measure: a row for each subject in each case. The box holds the middle half, the whiskers end at the last value within
//! 1.5 boxes (Tukey, 1977), values beyond are dots; few values are all dots.

use super::{
    axis::{Axis, Frame},
    compare::Judgement,
    data::{Data, Place},
    number::Unit,
    scene::{Anchor, Dash, Paint, Scene, fit, width},
};
use crate::analysis::quantile::{quantile_of_sorted, sorted};

const WIDTH: f64 = 1040.0;
const ROW: f64 = 26.0;
/// With so many values or fewer, each is drawn.
const FEW: usize = 12;

/// The figure of these cases; `None` if there are no values.
pub(super) fn draw(
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
    let frame = Frame {
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
    place: Option<Place>,
}

fn rows(data: &Data, measure: usize, cases: &[usize]) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in cases {
        let title = data.tell(*case);
        if !title.is_empty() {
            rows.push(Row {
                label: title,
                height: ROW,
                place: None,
            });
        }
        for subject in data.present(measure, *case) {
            let place = Some(Place {
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
    fn place(&self) -> Option<Place> {
        self.place
    }

    fn draw(
        &self,
        scene: &mut Scene,
        frame: &Frame,
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
            let median = unit.tell_fully(summary.median);
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
        let [median, low, high] = [self.median, self.low, self.high].map(|v| unit.tell_fully(v));
        let n = self.values.len();
        format!("median {median}, middle half {low} to {high}, n = {n}")
    }
}

/// The strip of a figure in which a box is drawn.
struct Strip<'a> {
    scene: &'a mut Scene,
    frame: &'a Frame,
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
            let (at, hint) = (self.at(value), self.unit.tell_fully(value));
            self.scene.faint_dot(at, 2.6, self.paint, &hint);
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
