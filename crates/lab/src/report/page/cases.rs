//! Every case of every measure that matters, if there are several cases: the glance's cells, case by case.

use super::{Source, glance, scrolling};
use crate::report::html::{row, said, tag};

/// The section; empty if the glance says it all.
pub(super) fn section(source: &Source<'_>) -> String {
    let data = source.data;
    if data.cases.len() < 2 {
        return String::new();
    }
    let measures = glance::shown(source);
    measures
        .iter()
        .map(|measure| card(source, *measure))
        .collect()
}

fn card(source: &Source<'_>, measure: usize) -> String {
    let data = source.data;
    let Some(of) = data.measures.get(measure) else {
        return String::new();
    };
    let families = data.run_families();
    let head = glance::head(data, source.judgement, &families);
    let line = |case: &usize| {
        let mut cells = vec![said("th scope=\"row\"", &data.tell(*case))];
        let one = |family: &usize| glance::one(source, measure, *case, *family);
        cells.extend(families.iter().map(one));
        row(&cells)
    };
    // A case in which every repetition failed is shown too.
    let mut cases = data.cases_of(measure);
    cases.extend(
        data.counts
            .iter()
            .filter(|(_, counts)| counts.ok == 0)
            .map(|((case, _), _)| *case),
    );
    cases.sort_unstable();
    cases.dedup();
    let rows: String = cases.iter().map(line).collect();
    let table = tag(
        "table class=\"glance\"",
        &format!("{}{}", tag("thead", &head), tag("tbody", &rows)),
    );
    format!("{}{}", said("h3", &of.title()), scrolling(&table))
}
