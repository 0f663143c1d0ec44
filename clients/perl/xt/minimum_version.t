# Nothing needs a Perl later than 5.16, nor a module that does not come with it.

use strict;
use warnings;

use Module::CoreList ();
use Perl::MinimumVersion ();
use Test::More;

my $MINIMUM = '5.016';

for my $file ( glob 'lib/*.pm lib/Leasehold/*.pm examples/* t/*.t t/lib/*.pm Makefile.PL' ) {
    my $checked = Perl::MinimumVersion->new($file);
    ok $checked, "$file can be read" or next;
    cmp_ok $checked->minimum_version->numify, '<=', $MINIMUM, "$file: its syntax";
    open my $handle, '<', $file or die "$file: $!";
    for my $line (<$handle>) {
        last if $line =~ m/\A__END__/;
        my ($module) = $line =~ m/\A\s*(?:use|require)\s+([A-Z]\w*(?:::\w+)*)/ or next;
        next if $module =~ m/\A(?:Leasehold|TestServer)/;
        my $first = Module::CoreList->first_release($module);
        ok defined $first && $first <= $MINIMUM, "$file: $module comes with Perl $MINIMUM";
    }
}

done_testing;
