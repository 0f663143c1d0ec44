//! Whole numbers as digits, at the end of a buffer: answers are full of them, and a formatter costs several times as much.
//!
//! In:    a number. Out: its decimal digits.
//! Never: knows signs, fractions or locales.

/// The number, as short as it is.
pub fn put(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The last `N` digits of the number, with zeros in front.
pub fn put_padded<const N: usize>(out: &mut Vec<u8>, number: u64) {
    let mut digits = [b'0'; N];
    let mut left = number;
    for digit in digits.iter_mut().rev() {
        *digit += (left % 10) as u8;
        left /= 10;
    }
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_a_formatter_writes_them() {
        for number in [0, 7, 10, 99, 100, 12_345, u64::MAX] {
            let (mut short, mut padded) = (Vec::new(), Vec::new());
            put(&mut short, number);
            assert_eq!(short, number.to_string().into_bytes());
            put_padded::<6>(&mut padded, number);
            assert_eq!(padded, format!("{:06}", number % 1_000_000).into_bytes());
        }
    }
}
