# Every module has documentation without errors, of every public call, and the version of the distribution.

use strict;
use warnings;

use File::Find ();
use Pod::Checker ();
use Test::More;

my @files;
File::Find::find( { no_chdir => 1, wanted => sub { push @files, $_ if m/[.]pm\z/ } }, 'lib' );
cmp_ok scalar @files, '>=', 7;

open my $manifest, '<', 'MANIFEST' or die "MANIFEST: $!";
my %is_listed = map { chomp; $_ => 1 } <$manifest>;
ok -e, "$_ of MANIFEST is there" for sort keys %is_listed;
for my $folder (qw(lib t xt examples)) {
    File::Find::find( { no_chdir => 1, wanted => sub { ok $is_listed{$_}, "$_ is in MANIFEST" if -f } }, $folder );
}

for my $file ( sort @files ) {
    open my $handle, '<', $file or die "$file: $!";
    my $text = do { local $/ = undef; <$handle> };
    my ( $code, $pod ) = split m/^__END__$/m, $text, 2;
    my $checker = Pod::Checker->new( -quiet => 1, -warnings => 1 );
    open my $nowhere, '>', \my $complaints or die $!;
    $checker->parse_from_file( $file, $nowhere );
    is $checker->num_errors, 0, "$file: its POD has no errors" or diag $complaints;
    like $code, qr/^our \$VERSION\s*=\s*'0[.]2[.]0';$/m, "$file: version";
    ok $pod =~ m/^=head1 NAME\s+Leasehold\S* - \S/m, "$file: a name";
    my ($own) = split m/^package Leasehold::\w+::\w+;$/m, $code;
    for my $name ( sort grep { !m/\A(?:_|[A-Z]+\z)/ } $own =~ m/^sub (\w+)/mg ) {
        next if $name eq 'DESTROY';
        like $pod, qr/^=head2 (?:.*\W)?$name\b/m, "$file: '$name' is described";
    }
}

done_testing;
