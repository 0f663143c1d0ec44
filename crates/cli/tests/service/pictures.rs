//! The other pictures of the documentation: boxes, bars, arrows and words at given places.
//!
//! In:    docs/images/*.txt that begin with `canvas`. Out: an SVG file of the same name, compared with the committed
//!        one. `UPDATE_PICTURE=1 cargo test -p leasehold --test service picture` writes them. Lines of a text:
//!
//! ```text
//! canvas | WIDTH HEIGHT | what the picture shows
//! box    | X Y WIDTH HEIGHT | style | first line | further lines ...
//! text   | X Y | style | words
//! arrow  | X Y  X Y ... | style                  along these points
//! line   | X Y  X Y ... | style                  the same without a head
//! ```

use std::fmt::Write as _;
use std::fs;

use crate::road::{HEAD, STYLE, escaped, root, up_to_date};

/// Colours of boxes and lines that only these pictures have.
const MORE_STYLE: &str = "<style>.blue{fill:#e3edf8;stroke:#7d8a97}.green{fill:#e7f3e4;stroke:#7d8a97}.orange{fill:#f8eadb;stroke:#7d8a97}.grey{fill:#eef0f2;stroke:#7d8a97}.red{fill:#f6dcd9;stroke:#a3443a}.plain{fill:#fff;stroke:#7d8a97}.dashed{fill:none;stroke:#5a6673;stroke-width:1.5;stroke-dasharray:5 4}.axis{fill:none;stroke:#9aa5b0;stroke-width:1}.small{font-size:12px;fill:#48535e}.middle{font-size:13px;text-anchor:middle}.bold{font:600 14px sans-serif}</style>";
const LINE_HEIGHT: usize = 17;

fn numbers(text: &str) -> Vec<usize> {
    text.split_whitespace().map(|number| number.parse().expect("a number of pixels")).collect()
}

fn words(svg: &mut String, (x, y): (usize, usize), class: &str, text: &str) {
    writeln!(svg, r#"<text x="{x}" y="{y}" class="{class}">{}</text>"#, escaped(text)).unwrap();
}

/// A rectangle with its lines in the middle, the first one in bold.
fn rectangle(svg: &mut String, place: &[usize], class: &str, lines: &[&str]) {
    let [x, y, width, height] = *place else { panic!("a box has four numbers") };
    writeln!(svg, r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{class}"/>"#)
        .unwrap();
    let top = y + (height + 10).saturating_sub(lines.len() * LINE_HEIGHT) / 2 + LINE_HEIGHT / 2;
    for (number, line) in lines.iter().enumerate() {
        let weight = if number == 0 { r#" font-weight="600""# } else { "" };
        writeln!(
            svg,
            r#"<text x="{}" y="{}" class="middle"{weight}>{}</text>"#,
            x + width / 2,
            top + number * LINE_HEIGHT,
            escaped(line)
        )
        .unwrap();
    }
}

fn path(svg: &mut String, points: &[usize], class: &str, head: &str) {
    let points: Vec<String> = points.chunks(2).map(|point| format!("{} {}", point[0], point[1])).collect();
    writeln!(svg, r#"<path d="M{}" class="{class}"{head}/>"#, points.join("L")).unwrap();
}

fn draw(text: &str) -> String {
    let mut svg = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let place = numbers(parts[1]);
        match (parts[0], &parts[2..]) {
            ("canvas", [label]) => {
                let (width, height) = (place[0], place[1]);
                write!(
                    svg,
                    r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{label}">
{STYLE}
{MORE_STYLE}
{HEAD}
<rect width="{width}" height="{height}" fill="#fff"/>
"##
                )
                .unwrap();
            }
            ("box", [class, lines @ ..]) => rectangle(&mut svg, &place, class, lines),
            ("text", [class, text]) => words(&mut svg, (place[0], place[1]), class, text),
            ("arrow", [class]) => path(&mut svg, &place, class, r##" marker-end="url(#head)""##),
            ("line", [class]) => path(&mut svg, &place, class, ""),
            _ => panic!("no line of a picture: {line}"),
        }
    }
    svg + "</svg>\n"
}

#[test]
fn every_picture_is_up_to_date() {
    let mut seen = 0;
    for entry in fs::read_dir(root("docs/images")).unwrap() {
        let file = entry.unwrap().path();
        let text = fs::read_to_string(&file).unwrap_or_default();
        if file.extension().is_some_and(|kind| kind == "txt") && text.contains("\ncanvas") {
            up_to_date(file.file_stem().unwrap().to_str().unwrap(), &draw(&text));
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen} pictures");
}
