//! What an observer of the client's link recognises: accuracies beside chance, and who is mistaken for whom.

use super::{Source, details, scrolling};
use crate::report::{
    html::{row, said, tag},
    recognise::Answer,
};

/// The section; empty if nobody looked.
pub(super) fn section(source: &Source<'_>) -> String {
    if source.answers.is_empty() {
        return String::new();
    }
    let heads = [
        "Watched",
        "To be recognised",
        "Recognised",
        "95 % interval",
        "Chance",
        "n",
        "",
    ];
    let head = heads.map(|head| said("th scope=\"col\"", head));
    let lines: String = source.answers.iter().map(line).collect();
    let table = format!("{}{}", tag("thead", &row(&head)), tag("tbody", &lines));
    let matrices: String = source.answers.iter().map(matrix).collect();
    format!(
        "{}{}{matrices}",
        tag("p class=\"note\"", NOTE),
        scrolling(&tag("table class=\"numbers\"", &table))
    )
}

const NOTE: &str = "Somebody sees the packets of the client's link, their sizes, directions and times, but nothing in them, and knows the network and what is carried. \
     The three nearest neighbours among the other repetitions vote (standardised features, no totals, nothing tuned). A better classifier may recognise more: \
     what is not recognised here is not proven to be hidden. Intervals are Wilson's; chance is the best guess without a look.";

fn percent(share: f64) -> String {
    format!("{:.1}\u{202f}%", 100.0 * share)
}

fn line(answer: &Answer) -> String {
    let found = &answer.confusion;
    let (low, high) = found.interval();
    let verdict = match low > found.chance() {
        true => "better than chance",
        false => "not better than chance",
    };
    let asked = format!("{}, one of {}", answer.asked, answer.classes.len());
    let number = |text: &str| said("td class=\"n\"", text);
    row(&[
        said("th scope=\"row\"", &answer.watched),
        said("td class=\"words\"", &asked),
        number(&percent(found.accuracy())),
        number(&format!("{} – {}", percent(low), percent(high))),
        number(&percent(found.chance())),
        number(&found.asked().to_string()),
        said("td class=\"words\"", verdict),
    ])
}

/// Who is taken for whom: a row for what it was, a column for the guess.
fn matrix(answer: &Answer) -> String {
    let mut heads = vec![said("th", "was ↓ guessed →")];
    let names = answer.classes.iter();
    heads.extend(names.map(|name| said("th scope=\"col\"", name)));
    let line = |(name, guesses): (&String, &Vec<usize>)| {
        let all: usize = guesses.iter().sum();
        let mut cells = vec![said("th scope=\"row\"", name)];
        cells.extend(guesses.iter().map(|count| cell(*count, all)));
        row(&cells)
    };
    let lines: String = answer
        .classes
        .iter()
        .zip(&answer.confusion.of)
        .map(line)
        .collect();
    let table = format!("{}{}", tag("thead", &row(&heads)), tag("tbody", &lines));
    details(
        &format!("{}: which {}?", answer.watched, answer.asked),
        &scrolling(&tag("table class=\"numbers\"", &table)),
        false,
    )
}

/// The darker the more of its row.
fn cell(count: usize, all: usize) -> String {
    let share = count as f64 / all.max(1) as f64;
    let style = format!(
        "td class=\"n\" style=\"background:rgba(0,114,178,{:.2})\"",
        0.55 * share
    );
    said(&style, &count.to_string())
}
