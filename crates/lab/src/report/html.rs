//! Text that is safe to stand in HTML and SVG.

/// A text as content or as the value of a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters are no characters of XML.
            other if other.is_control() && !matches!(other, '\n' | '\t') => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// `<TAG>inner</TAG>`; `head` is the tag with its attributes, which the program itself wrote.
pub(super) fn tag(head: &str, inner: &str) -> String {
    let name = head.split_whitespace().next().unwrap_or(head);
    format!("<{head}>{inner}</{name}>")
}

/// The same around text that anybody wrote.
pub(super) fn said(head: &str, text: &str) -> String {
    tag(head, &escape(text))
}

/// A row of a table's head or body.
pub(super) fn row(cells: &[String]) -> String {
    tag("tr", &cells.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_browser_would_act_on_is_left() {
        let safe = escape("<a href='x' title=\"y\">&\u{0}</a>");
        assert_eq!(
            safe,
            "&lt;a href=&#39;x&#39; title=&quot;y&quot;&gt;&amp;\u{fffd}&lt;/a&gt;"
        );
    }

    #[test]
    fn a_tag_is_closed_by_its_name() {
        assert_eq!(
            said("td class=\"n\"", "1 < 2"),
            "<td class=\"n\">1 &lt; 2</td>"
        );
    }
}
