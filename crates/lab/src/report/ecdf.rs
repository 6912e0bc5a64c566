//! The distribution of a measure in one case: which share of the values is not above a value, a step line for each subject.

use super::{
    axis::{Axis, Frame, legend},
    data::{Data, Place},
    number::Unit,
    scene::{Anchor, Dash, Paint, Scene, fit},
};
use crate::analysis::quantile::ecdf;

const WIDTH: f64 = 440.0;

/// The figure; `None` if no subject has a value.
pub(super) fn draw(data: &Data, measure: usize, case: usize, unit: Unit) -> Option<Scene> {
    let subjects = data.present(measure, case);
    let of = data.measures.get(measure)?;
    let places = subjects.iter().map(|subject| Place {
        measure,
        case,
        subject: *subject,
    });
    let all: Vec<(usize, Vec<f64>)> = places
        .map(|place| (place.subject, data.values(place)))
        .collect();
    let x = Axis::over(
        all.iter().flat_map(|(_, values)| values.iter().copied()),
        unit,
        &of.meaning.title,
    );
    let case = data.tell(case);
    let mut scene = Scene::new(WIDTH, 28.0, of.title());
    let mut top = scene.head;
    if !case.is_empty() {
        let case = fit(&case, 12.0, WIDTH - 24.0);
        scene.text((12.0, top + 14.0), &case, 12.0, Paint::Ink, Anchor::Start);
        top += 18.0;
    }
    let names: Vec<(String, usize)> = subjects
        .iter()
        .map(|subject| (data.label(*subject).to_owned(), data.series(*subject)))
        .collect();
    top += legend(&mut scene, (12.0, top + 14.0), WIDTH - 24.0, &names) + 8.0;
    scene.height = top + 190.0 + 48.0;
    let y = Axis::shares("Share of values up to x");
    let frame = Frame {
        left: 62.0,
        top,
        width: WIDTH - 62.0 - 18.0,
        height: 190.0,
        x,
        y,
    };
    frame.draw(&mut scene);
    for (subject, values) in &all {
        let series = data.series(*subject);
        scene.line(
            &steps(&frame, values),
            Paint::Series(series),
            2.2,
            Dash::of(series),
        );
    }
    Some(scene)
}

/// From the left edge at nought to the right edge at one.
fn steps(frame: &Frame, values: &[f64]) -> Vec<(f64, f64)> {
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
