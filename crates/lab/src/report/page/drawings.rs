//! The figures, by measure, with links to their files.

use super::{Source, details};
use crate::report::{
    data::Measure,
    figures::{Figure, Kind},
    html::{escape, said, tag},
    svg::{Place, svg},
};

/// Up to so many distributions are unfolded.
const UNFOLDED: usize = 4;

/// The section.
pub(super) fn section(source: &Source<'_>) -> String {
    let measures = source.data.measures.iter().enumerate();
    let (key, other): (Vec<_>, Vec<_>) = measures.partition(|(_, of)| of.meaning.key);
    let of = |all: &[(usize, _)]| {
        all.iter()
            .map(|(measure, _)| one(source, *measure))
            .collect::<String>()
    };
    let (first, rest) = (of(&key), of(&other));
    let rest = if rest.is_empty() {
        rest
    } else {
        details("Box plots of the other measures", &rest, false)
    };
    first + &rest
}

fn one(source: &Source<'_>, measure: usize) -> String {
    let figures = |kind| {
        source
            .figures
            .iter()
            .filter(move |figure| figure.measure == Some(measure) && figure.kind == kind)
    };
    let any = |figure: &Figure| figure.measure == Some(measure);
    if !source.figures.iter().any(any) {
        return String::new();
    }
    let title = source.data.measures.get(measure).map(Measure::title);
    let mut content = said("h3", &title.unwrap_or_default());
    content += &figures(Kind::Lines { first: true })
        .map(figure)
        .collect::<String>();
    let others: String = figures(Kind::Lines { first: false }).map(figure).collect();
    if !others.is_empty() {
        content += &details("Medians by the other parameters", &others, false);
    }
    content += &figures(Kind::Box).map(figure).collect::<String>();
    let ecdfs: Vec<String> = figures(Kind::Ecdf).map(figure).collect();
    if !ecdfs.is_empty() {
        let open = ecdfs.len() <= UNFOLDED;
        let grid = tag("div class=\"grid\"", &ecdfs.concat());
        content += &details("Distributions", &grid, open);
    }
    let series: String = figures(Kind::Series).map(figure).collect();
    if !series.is_empty() {
        content += &details("Over the campaign's time", &series, ecdfs.len() <= UNFOLDED);
    }
    content
}

/// A figure with its files.
pub(super) fn figure(figure: &Figure) -> String {
    let name = &figure.name;
    let links =
        format!("<a href=\"figures/{name}.svg\">SVG</a> <a href=\"figures/{name}.png\">PNG</a>");
    let kind = if figure.kind == Kind::Ecdf {
        "figure class=\"small\""
    } else {
        "figure"
    };
    tag(
        kind,
        &format!(
            "{}{}",
            svg(&figure.scene, Place::Page),
            tag("figcaption", &(escape(&figure.caption) + " " + &links))
        ),
    )
}
