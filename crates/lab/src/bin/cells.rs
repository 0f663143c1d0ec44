//! Prints the tables of docs/scaling.md: see `leasehold_lab::cells`.

#![allow(clippy::print_stdout, reason = "a table for people")]

fn main() {
    println!("{}", leasehold_lab::cells::tables());
}
