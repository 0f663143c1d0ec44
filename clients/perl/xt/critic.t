# The code keeps the rules of .perlcriticrc.

use strict;
use warnings;

use Perl::Critic ();
use Test::More;

my $critic = Perl::Critic->new( -profile => '.perlcriticrc' );
for my $file ( glob 'lib/*.pm lib/Leasehold/*.pm examples/* Makefile.PL' ) {
    my @violations = $critic->critique($file);
    is scalar @violations, 0, $file or diag "$file: $_" for @violations ? @violations : q{};
}

done_testing;
