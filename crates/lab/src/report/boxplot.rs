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
        draw_box(scene, frame, middle, (&values, paint, unit));
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

fn draw_box(
    scene: &mut Scene,
    frame: &Frame,
    middle: f64,
    (values, paint, unit): (&[f64], Paint, Unit),
) {
    let at = |share| quantile_of_sorted(values, share);
    let (Some(low), Some(median), Some(high)) = (at(0.25), at(0.5), at(0.75)) else {
        return;
    };
    let reach = 1.5 * (high - low);
    let within = |value: &&f64| (low - reach..=high + reach).contains(*value);
    let (first, last) = (values.iter().find(within), values.iter().rev().find(within));
    let across = |value: f64| frame.across(value);
    if let (Some(first), Some(last)) = (first, last) {
        for (from, to) in [(*first, low), (high, *last)] {
            scene.line(
                &[(across(from), middle), (across(to), middle)],
                paint,
                1.6,
                Dash::Solid,
            );
        }
        for end in [*first, *last] {
            scene.line(
                &[(across(end), middle - 4.0), (across(end), middle + 4.0)],
                paint,
                1.6,
                Dash::Solid,
            );
        }
    }
    let (left, right) = (across(low), across(high).max(across(low) + 1.5));
    let corners = [
        (left, middle - 8.0),
        (right, middle - 8.0),
        (right, middle + 8.0),
        (left, middle + 8.0),
    ];
    let [half, low, high] = [median, low, high].map(|value| unit.tell_fully(value));
    let hint = format!(
        "median {half}, middle half {low} to {high}, n = {}",
        values.len()
    );
    scene.area(&corners, paint, 0.28, &hint);
    let mut edge = corners.to_vec();
    edge.push((left, middle - 8.0));
    scene.line(&edge, paint, 1.4, Dash::Solid);
    for value in values
        .iter()
        .filter(|value| values.len() <= FEW || !within(value))
    {
        scene.faint_dot(
            (across(*value), middle),
            2.6,
            paint,
            &unit.tell_fully(*value),
        );
    }
    scene.line(
        &[
            (across(median), middle - 9.0),
            (across(median), middle + 9.0),
        ],
        paint,
        3.4,
        Dash::Solid,
    );
}
