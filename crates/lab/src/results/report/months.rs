//! The page of a monitor: the last months of each interface, made from the same marks as a campaign's report. One file, no script, nothing from
//! elsewhere.

use std::collections::BTreeMap;

use super::{
    metric::{Quantity, Unit, count},
    page::{heads, style, table},
    plots::steps,
    render::{Target, escape, row, svg, tag, text_tag},
    scene::{Axis, Dash, Paint, PlotArea, Scene, legend},
};
use crate::{
    experiments::workload::Transfer,
    results::{
        analysis::statistics::{median, quantile},
        export::Utc,
    },
};

const DAY: f64 = 86_400.0;
const WIDTH: f64 = 860.0;

/// What is shown of one interface.
#[derive(Clone, Debug)]
pub(crate) struct Vantage {
    /// The interface.
    pub(crate) name: String,
    /// What carried the transfers.
    pub(crate) subject: String,
    /// Bytes of a month.
    pub(crate) limit: u64,
    /// Each month with the bytes it was charged with.
    pub(crate) months: Vec<(String, u64)>,
    /// All samples.
    pub(crate) points: Vec<Point>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    at: f64,
    size: u64,
    name: String,
    first: Option<f64>,
    last: Option<f64>,
    error: Option<String>,
}

impl Point {
    /// What the page takes of a transfer.
    pub(crate) fn of(transfer: &Transfer) -> Self {
        let seconds =
            |at: Option<u64>| at.map(|at| std::time::Duration::from_micros(at).as_secs_f64());
        let error = transfer.error.as_ref().map(|error| error.kind.clone());
        let good = |at: Option<u64>| seconds(at).filter(|_| error.is_none());
        Self {
            at: transfer.began,
            size: transfer.asked[1],
            name: transfer.workload.clone(),
            first: good(transfer.phases.first_byte),
            last: good(transfer.phases.last_byte),
            error,
        }
    }
}

/// A time of a sample.
type Time = fn(&Point) -> Option<f64>;

const TIMES: [(&str, Time); 2] = [
    ("Time to first byte", |point| point.first),
    ("Time to last byte", |point| point.last),
];

/// The page at `now`, in seconds since 1970.
pub(crate) fn page(vantages: &[Vantage], now: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "seconds below 2^53")]
    let now = now as f64;
    let sections: String = vantages
        .iter()
        .map(|vantage| section(vantage, now))
        .collect();
    let links = vantages.iter().map(|vantage| {
        let name = escape(&vantage.name);
        tag(&format!("a href=\"#{name}\""), &name)
    });
    let links: String = links.collect();
    let head = text_tag("p class=\"eyebrow\"", "hoplite-lab monitor")
        + &text_tag("h1", "The last months")
        + &text_tag(
            "p class=\"summary\"",
            &format!("As of {}.", Utc::at(now).shortly()),
        );
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>hoplite-lab monitor</title><style>{}</style></head><body>{}<nav>{links}</nav><main>{sections}</main>{}</body></html>\n",
        style(),
        tag("header", &head),
        text_tag(
            "footer",
            &format!("hoplite-lab {}", env!("CARGO_PKG_VERSION"))
        ),
    )
}

fn section(vantage: &Vantage, now: f64) -> String {
    let title = format!("{}: {}", vantage.name, vantage.subject);
    let mut content = text_tag("h2", &title) + &budget(vantage);
    if vantage.points.is_empty() {
        content += &text_tag("p", "No sample yet.");
    } else {
        content += &table_of_sizes(vantage);
        content += &failures(vantage);
        for (title, time) in TIMES {
            content += &figure(
                &by_day(vantage, now, (title, time)),
                "Median of each day by size; bars from the first to the third quartile.",
            );
        }
        for (title, time) in TIMES {
            content += &figure(
                &distribution(vantage, now, (title, time)),
                "Distribution over the last 30 days by size.",
            );
        }
    }
    tag(
        &format!("section id=\"{}\"", escape(&vantage.name)),
        &content,
    )
}

fn figure(scene: &Scene, caption: &str) -> String {
    tag(
        "figure",
        &(text_tag("h3", &scene.title)
            + &svg(scene, Target::Page)
            + &text_tag("figcaption", caption)),
    )
}

fn bytes(value: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let value = value as f64;
    Quantity::Bytes.unit(value).format_with_unit(value)
}

fn cells(texts: &[String]) -> String {
    let cells: Vec<String> = texts.iter().map(|text| text_tag("td", text)).collect();
    row(&cells)
}

fn budget(vantage: &Vantage) -> String {
    let line = |(month, charged): &(String, u64)| {
        let share = u128::from(*charged) * 100 / u128::from(vantage.limit.max(1));
        cells(&[
            month.clone(),
            bytes(*charged),
            bytes(vantage.limit),
            format!("{share} %"),
        ])
    };
    let head = heads(&[
        "Month (UTC)",
        "Over the interface, both ways",
        "Budget",
        "Share",
    ]);
    text_tag("h3", "Budget") + &table("table", &head, vantage.months.iter().rev().map(line))
}

/// Samples of each size that is no note, the smallest first.
fn sizes(vantage: &Vantage) -> BTreeMap<(u64, &str), Vec<&Point>> {
    let mut sizes: BTreeMap<(u64, &str), Vec<&Point>> = BTreeMap::new();
    for point in vantage.points.iter().filter(|point| point.size > 0) {
        sizes
            .entry((point.size, point.name.as_str()))
            .or_default()
            .push(point);
    }
    sizes
}

fn table_of_sizes(vantage: &Vantage) -> String {
    let line = |((_, name), points): ((u64, &str), Vec<&Point>)| {
        let values = |time: Time| {
            points
                .iter()
                .filter_map(|point| time(point))
                .collect::<Vec<f64>>()
        };
        let told = |values: &[f64], share: f64| {
            let value = quantile(values, share);
            let text = value.map(|value| Quantity::Seconds.unit(value).format_with_unit(value));
            text.unwrap_or_else(|| "–".to_owned())
        };
        let (first, last) = (values(|point| point.first), values(|point| point.last));
        let failed = points.iter().filter(|point| point.error.is_some()).count();
        cells(&[
            name.to_owned(),
            points.len().to_string(),
            failed.to_string(),
            told(&first, 0.5),
            told(&first, 0.95),
            told(&last, 0.5),
            told(&last, 0.95),
        ])
    };
    let head = heads(&[
        "Size",
        "Transfers",
        "Failed",
        "First byte, median",
        "95 %",
        "Last byte, median",
        "95 %",
    ]);
    text_tag("h3", "All transfers shown")
        + &table("table", &head, sizes(vantage).into_iter().map(line))
}

fn failures(vantage: &Vantage) -> String {
    let mut kinds: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for point in &vantage.points {
        if let Some(error) = &point.error {
            let kind = kinds.entry(error).or_default();
            *kind = (kind.0 + 1, kind.1.max(point.at));
        }
    }
    if kinds.is_empty() {
        return text_tag("p", "Nothing failed.");
    }
    let line = |(kind, (number, last)): (&str, (usize, f64))| {
        cells(&[
            kind.to_owned(),
            count(number, "sample"),
            Utc::at(last).shortly(),
        ])
    };
    let head = heads(&["What failed", "How often", "Last"]);
    text_tag("h3", "Failures") + &table("table", &head, kinds.into_iter().map(line))
}

fn frame(scene: &mut Scene, names: &[(String, usize)], (x, y): (Axis, Axis)) -> PlotArea {
    let top = scene.head + legend(scene, (12.0, scene.head + 14.0), WIDTH - 24.0, names) + 8.0;
    scene.height = top + 200.0 + 48.0;
    let frame = PlotArea {
        left: 72.0,
        top,
        width: WIDTH - 72.0 - 20.0,
        height: 200.0,
        x,
        y,
    };
    frame.draw(scene);
    frame
}

fn names(vantage: &Vantage) -> Vec<(String, usize)> {
    let names = sizes(vantage).into_keys().map(|(_, name)| name.to_owned());
    names.zip(0..).collect()
}

fn seconds_of(values: &[f64]) -> Unit {
    Quantity::Seconds.unit(median(values).unwrap_or(1.0))
}

/// A line through each day's median.
fn by_day(vantage: &Vantage, now: f64, (title, time): (&str, Time)) -> Scene {
    let mut lines: Vec<Vec<(f64, [f64; 3])>> = Vec::new();
    for points in sizes(vantage).into_values() {
        let mut days: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
        for point in points {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a float is cut to the range of the integer"
            )]
            let day = (point.at / DAY).floor() as i64;
            days.entry(day).or_default().extend(time(point));
        }
        let line = days.into_iter().filter_map(|(day, values)| {
            let of = |share| quantile(&values, share);
            #[expect(clippy::cast_precision_loss, reason = "days since 1970")]
            Some((
                (day as f64 + 0.5) - now / DAY,
                [of(0.25)?, of(0.5)?, of(0.75)?],
            ))
        });
        lines.push(line.collect());
    }
    let all: Vec<f64> = lines
        .iter()
        .flatten()
        .flat_map(|(_, values)| *values)
        .collect();
    let mut scene = Scene::new(WIDTH, 8.0, format!("{title} by day"));
    let x = Axis::linear(
        lines.iter().flatten().map(|(day, _)| *day).chain([0.0]),
        Unit::new("", 1.0),
        "days from now",
    );
    let y = Axis::over(all.iter().copied(), seconds_of(&all), title);
    let frame = frame(&mut scene, &names(vantage), (x, y));
    for (series, line) in lines.iter().enumerate() {
        let paint = Paint::Series(series);
        let middle: Vec<(f64, f64)> = line
            .iter()
            .map(|(day, [_, middle, _])| frame.at(*day, *middle))
            .collect();
        for (day, [low, _, high]) in line {
            scene.line(
                &[frame.at(*day, *low), frame.at(*day, *high)],
                paint,
                1.0,
                Dash::Solid,
            );
        }
        for at in &middle {
            scene.dot(*at, (2.8, 1.0), paint, "");
        }
        scene.line(&middle, paint, 1.6, Dash::Solid);
    }
    scene
}

/// The share of samples that were not slower, over the last 30 days.
fn distribution(vantage: &Vantage, now: f64, (title, time): (&str, Time)) -> Scene {
    let sizes = sizes(vantage);
    let recent = |points: &Vec<&Point>| -> Vec<f64> {
        let recent = points.iter().filter(|point| now - point.at <= 30.0 * DAY);
        recent.filter_map(|point| time(point)).collect()
    };
    let lines: Vec<Vec<f64>> = sizes.values().map(recent).collect();
    let all: Vec<f64> = lines.iter().flatten().copied().collect();
    let mut scene = Scene::new(WIDTH, 8.0, format!("{title}, distribution"));
    let x = Axis::over(all.iter().copied(), seconds_of(&all), title);
    let frame = frame(
        &mut scene,
        &names(vantage),
        (x, Axis::shares("Share of transfers")),
    );
    for (series, values) in lines
        .iter()
        .enumerate()
        .filter(|(_, values)| !values.is_empty())
    {
        scene.line(
            &steps(&frame, values),
            Paint::Series(series),
            2.2,
            Dash::of(series),
        );
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample::examples::transfer;

    fn vantage() -> Vantage {
        let mut failed = transfer("5MB", 2, 1);
        failed.error = Some(crate::experiments::workload::TransferError {
            kind: "INTERFACE".into(),
            why: "<gone>".into(),
        });
        Vantage {
            name: "wwan0".into(),
            subject: "<tor>".into(),
            limit: 4_000_000_000,
            months: vec![("2027-01".into(), 1_000_000_000)],
            points: vec![Point::of(&transfer("5MB", 1, 1)), Point::of(&failed)],
        }
    }

    #[test]
    fn a_page_has_the_budget_the_times_and_what_failed() {
        let page = page(&[vantage()], 1_800_100_000);
        for part in [
            "wwan0",
            "25 %",
            "2027-01",
            "INTERFACE",
            "1 sample",
            "Time to last byte by day",
            "<svg",
            "&lt;tor&gt;",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains(">0 s<"), "times below a second are times");
        assert!(
            !page.contains("<tor>") && !page.contains("://"),
            "nothing from elsewhere"
        );
    }

    #[test]
    fn a_monitor_without_a_sample_has_a_page_too() {
        let empty = Vantage {
            points: Vec::new(),
            months: Vec::new(),
            ..vantage()
        };
        assert!(page(&[empty], 1_800_100_000).contains("No sample yet."));
    }
}
