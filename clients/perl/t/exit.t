# However a program ends, its claims end with it: released if it leaves, aborted if it is killed.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Leasehold;
use TestServer qw(eventually program);

my $server = TestServer->start;
my $number = 0;

# Runs a program that holds $claim, made with $manager, and then does something. Returns its end, output and errors.
sub ends {
    my ( $code, $before ) = @_;
    my $resource = 'exit-' . ++$number;
    my $program  = program( ( $before || q{} ) . <<"PROGRAM", $server->url, $resource );
our \$manager = Leasehold::LockManager->new( url => \$ARGV[0], ttl => 600, on_lost => sub { } );
our \$claim = \$manager->claim( \$ARGV[1] );
$code
PROGRAM
    my $rest = $program->rest;
    return ( $program->end, $rest, $program->errors, $resource );
}

my @CASES = (
    [ 'the end of the program' => q{},                                        'exit 0',   'released' ],
    [ 'exit'                   => 'exit 3;',                                  'exit 3',   'released' ],
    [ 'exit in a sub'          => 'sub f { my $c = $claim; exit 4 } f();',    'exit 4',   'released' ],
    [ 'die'                    => '$! = 0; $? = 0; die "on purpose\n";',      'exit 255', 'released' ],
    [ 'die with a local claim' => 'my $other = $claim; undef $claim; $! = 9; die "on purpose\n";', 'exit 9', 'released' ],
    [ 'exit in an eval'        => 'eval { exit 5 };',                         'exit 5',   'released' ],
    [ 'a cycle of references'  => 'my %loop = ( claim => $claim ); $loop{self} = \%loop; $claim->{loop} = \%loop;', 'exit 0', 'released' ],
    [ 'a hidden claim'         => 'my $hidden = sub { $claim }; our $keep = $hidden; undef $manager; exit 6;', 'exit 6', 'released' ],
    [ 'POSIX::_exit'           => 'require POSIX; POSIX::_exit(7);',          'exit 7',   'aborted' ],
    [ 'SIGKILL'                => 'kill KILL => $$; sleep 100;',              'signal 9', 'aborted' ],
    [ 'SIGTERM'                => 'kill TERM => $$; sleep 100;',              'signal 15', 'aborted' ],
    [ 'exec'                   => 'exec $^X, "-e", "exit 8";',                'exit 8',   'aborted' ],
);

for my $case (@CASES) {
    my ( $what, $code, $expected, $status ) = @{$case};
    subtest $what => sub {
        my ( $end, $rest, $errors, $resource ) = ends($code);
        is $end, $expected;
        ok eventually( sub { $server->statuses($resource) eq $status } ), "it is $status";
        is $rest, q{};
        is $errors, $what =~ m/die/ ? "on purpose\n" : q{}, 'without a word';
    };
}

subtest 'END blocks of the program still hold their claims' => sub {
    my ( $end, $rest ) = ends( 'END { print $claim->validate > 0 ? "held" : "not held"; print " $?\n"; $? = 11 } exit 10;' );
    is $rest, 'held 10';
    is $end, 'exit 11', 'and set the code';
};

subtest 'a claim that is made in an END block' => sub {
    my ( $end, $rest, $errors ) = ends('END { our $late = $manager->claim("late"); print "late\n" }');
    is $rest, 'late';
    is $errors, q{};
    is $server->statuses('late'), 'released';
};

subtest 'a claim that is made after our own END block, by a module that was loaded before' => sub {
    my ( $end, $rest, $errors, $resource ) = ends( q{}, <<'BEFORE' );
BEGIN { package Early; eval 'END { our $keep = Leasehold::LockManager->new( $ARGV[0] )->claim("early"); print "early\n" } 1' or die }
BEFORE
    is $end, 'exit 0';
    is $rest, 'early';
    ok eventually( sub { $server->statuses('early') =~ m/\A(?:released|aborted)\z/ } );
};

subtest 'standard handles that are closed' => sub {
    for my $closed ( 'close STDIN;', 'close STDIN; close STDERR;', 'close STDIN; close STDOUT; close STDERR;' ) {
        my ( $end, $rest, $errors, $resource ) = ends( <<'CODE', $closed );
my $ok = $claim->validate > 0 && fileno( $manager->{keychain}{to} ) > 2 && fileno( $manager->{keychain}{from} ) > 2;
$claim->release;
exit( $ok ? 12 : 13 );
CODE
        is $end, 'exit 12', $closed;
        is $server->statuses($resource), 'released';
    }
};

subtest 'what was printed before is printed once' => sub {
    my ( $end, $rest ) = ends( 'print "after\n";', '$| = 0; print "before\n";' );
    is $rest, "before\nafter";
};

subtest 'default layers of the program don\'t reach the pipes' => sub {
    local $ENV{PERL_UNICODE} = 'SDA';
    my ( $end, $rest ) = ends('my $other = $manager->claim( resource => "caf\x{e9}", data => { a => "\x{263a}" } ); print $other->validate > 0 ? "held\n" : "no\n";');
    is $rest, 'held';
    is $end, 'exit 0';
};

subtest 'threads' => sub {
    require Config;
    return pass('this perl has none') if !$Config::Config{useithreads};
    my ( $end, $rest, $errors, $resource ) = ends( <<'CODE', 'use threads; ' );
threads->create( sub {
    print eval { $claim->release; 1 } ? "released\n" : ref $@, "\n";
    print eval { my $own = $manager->claim('of-thread'); 1 } ? "own\n" : ref $@, "\n";
} )->join;
print $claim->validate > 0 ? "held\n" : "lost\n";
CODE
    is $rest, "Leasehold::Error::Foreign\nLeasehold::Error::Invalid\nheld", 'only the first thread has claims';
    is $server->statuses($resource), 'released';
};

done_testing;
