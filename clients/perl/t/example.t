# The example: a symlink lock and a claim side by side, in the three stages of a migration.

use strict;
use warnings;

use lib 't/lib';
use File::Temp ();
use Test::More;

use TestServer qw(eventually);

my $server = TestServer->start;
my $folder = File::Temp->newdir;
$ENV{LEASEHOLD_ADDR} = $server->url;
$ENV{PERL5LIB}       = join q{:}, grep { !ref } @INC;

# Whether the second stage gets the lock while the first holds it.
sub excludes {
    my ( $first, $second ) = @_;
    my $inner = qq{TIMEOUT=0 "$^X" examples/migrate-symlink-locks $second "$folder" model true 2>/dev/null; test \$? -eq 75};
    system $^X, 'examples/migrate-symlink-locks', $first, "$folder", 'model', 'sh', '-c', $inner;
    return $? == 0;
}

ok excludes( old  => 'old' ),  'old and old';
ok excludes( old  => 'both' ), 'old and both';
ok excludes( both => 'old' ),  'both and old';
ok excludes( both => 'both' ), 'both and both';
ok excludes( both => 'new' ),  'both and new';
ok excludes( new  => 'both' ), 'new and both';
ok excludes( new  => 'new' ),  'new and new';
ok !excludes( old => 'new' ), 'old and new do not exclude each other, as it says';

is system( $^X, 'examples/migrate-symlink-locks', 'both', "$folder", 'model', 'sh', '-c', 'exit 9' ), 9 << 8, 'the command\'s code';
is_deeply [ glob "$folder/*" ], [], 'no symlink is left';
unlike $server->statuses('model'), qr/active|waiting/, 'and no claim';

done_testing;
