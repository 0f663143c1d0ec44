# A destructor that can't release its claim warns, and does what on_destroy_failure says.

use strict;
use warnings;

use lib 't/lib';
use Test::More;

use Leasehold;
use TestServer qw(program);

my $server = TestServer->start;

# The claim is revoked between two renewals, so that its release fails.
sub run {
    my ( $end, %option ) = @_;
    my $setting = exists $option{setting} ? "on_destroy_failure => '$option{setting}'," : q{};
    my $program = program( <<"PROGRAM", $server->url );
@{[ $option{before} || q{} ]}
END { print "END block\\n" }
my \$manager = Leasehold::LockManager->new( url => \$ARGV[0], ttl => 600, $setting );
our \$claim = \$manager->claim('destroy');
print \$claim->id, "\\n";
<STDIN>;
$end
print "went on\\n";
@{[ $option{after} || q{} ]}
PROGRAM
    $server->revoke( $program->line );
    $program->say('go');
    my $rest = $program->rest;
    return ( $program->end, $rest, $program->errors );
}

my $WARNING = qr/'destroy' is lost.*destructor could not release/s;

subtest 'abort is the default: SIGABRT' => sub {
    my ( $end, $rest, $errors ) = run('undef $claim;');
    is $end, 'signal 6';
    is $rest, q{}, 'nothing more of the program runs';
    like $errors, $WARNING;
    is( ( run( 'undef $claim;', setting => 'abort', before => '$SIG{ABRT} = sub { print "no\n" };' ) )[0], 'signal 6', 'also with a handler' );
};

subtest 'exit: code 125, and END blocks run' => sub {
    my ( $end, $rest, $errors ) = run( 'eval { undef $claim };', setting => 'exit' );
    is $end, 'exit 125';
    is $rest, 'END block';
    like $errors, $WARNING;
};

subtest 'warn: the program goes on' => sub {
    my ( $end, $rest, $errors ) = run( 'undef $claim;', setting => 'warn' );
    is $end, 'exit 0';
    is $rest, "went on\nEND block";
    like $errors, $WARNING;
};

subtest 'in the middle of die the exception is kept' => sub {
    my $code = 'eval { my $mine = $claim; undef $claim; die "on purpose\n" }; print "caught $@";';
    my ( $end, $rest, $errors ) = run( $code, setting => 'warn' );
    is $rest, "caught on purpose\nwent on\nEND block";
    like $errors, $WARNING;
    is( ( run( $code, setting => 'exit' ) )[0], 'exit 125' );
};

subtest 'at the end of the program' => sub {
    my ( $end, $rest, $errors ) = run( q{}, setting => 'warn', after => 'exit 3;' );
    is $end, 'exit 3', 'warn keeps its code';
    like $errors, $WARNING;
    is( ( run( q{}, setting => 'exit' ) )[0], 'exit 125', 'exit sets one' );
    is( ( run( q{}, setting => 'exit', after => 'exit 3;' ) )[0], 'exit 3', 'unless there is one' );
    is( ( run(q{}) )[0], 'signal 6', 'abort' );
};

subtest 'a program whose warnings are fatal is warned all the same' => sub {
    my ( $end, $rest, $errors ) = run( 'undef $claim;', setting => 'warn', before => '$SIG{__WARN__} = sub { die @_ };' );
    is $end, 'exit 0';
    is $rest, "went on\nEND block";
    like $errors, $WARNING;
};

subtest 'a claim that was reported lost is not reported again' => sub {
    my ( $end, $rest, $errors ) = run( 'my $lost = 0; $claim->{on_lost} = sub { $lost++ }; eval { $claim->refresh }; undef $claim; print "lost $lost\n";' );
    is $end, 'exit 0';
    is $rest, "lost 1\nwent on\nEND block";
    is $errors, q{};
};

subtest 'a server that is gone' => sub {
    my $own     = TestServer->start;
    my $program = program( <<'PROGRAM', $own->url );
my $claim = Leasehold::LockManager->new( url => $ARGV[0], ttl => 600 )->claim('gone');
print "held\n";
<STDIN>;
PROGRAM
    is $program->line, 'held';
    $own->kill_it;
    $program->say('go');
    is $program->end, 'signal 6';
    like $program->errors, qr/Leasehold::Error::Unknown.*destructor could not release/s;
};

done_testing;
