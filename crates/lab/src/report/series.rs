//! Values over the campaign's time: whether the machine had moods, and whether they hit all subjects alike.

use std::collections::BTreeMap;

use super::{
    axis::{Axis, Frame, legend},
    compare::Judgement,
    data::Data,
    number::{Unit, digits},
    scene::{Paint, Scene},
};
use crate::results::store::{Attempt, Verdict};

const WIDTH: f64 = 1040.0;

/// Every value of a measure over its own median, so that all cases and subjects share one scale; plain values if there is one case only.
pub(super) fn draw(
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
        let label = format!("{} {}", data.label(place.subject), data.tell(place.case));
        for point in values {
            let value = if base == 0.0 {
                f64::NAN
            } else {
                point.value / base
            };
            let hint = format!(
                "{label}: {}, repetition {}",
                unit.tell_fully(point.value),
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
    let names = |series: &usize| {
        (
            data.families.get(*series).cloned().unwrap_or_default(),
            *series,
        )
    };
    let names: Vec<(String, usize)> = points.keys().map(names).collect();
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
    let frame = Frame {
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
            scene.faint_dot(frame.at(*at, *value), 2.8, Paint::Series(*series), hint);
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

fn late(data: &Data, attempt: &Attempt) -> (f64, f64, String) {
    let health = &attempt.health;
    let hint = format!(
        "p99 {} µs, at most {} µs, load {}, programs waited {} of the time",
        digits(health.late_us_p99),
        digits(health.late_us_max),
        digits(health.load[0]),
        health
            .cpu_pressure
            .map_or_else(|| "–".to_owned(), |share| digits(share * 100.0) + " %")
    );
    (
        attempt.began - data.campaign.began,
        health.late_us_p99,
        hint,
    )
}
