# A destructor that can't release its claim warns, and does what on_destroy_failure says.

use strict;
use warnings;

use lib 't/lib';
use File::Temp ();
use Test::More;

use Leasehold;
use TestServer qw(program);

my $server = TestServer->start;

# A keychain that is killed when it is asked to release: whether the claim is released can't be told.
my $FOLDER = File::Temp->newdir;
{
    open my $file, '>', "$FOLDER/keychain" or die "open: $!";
    print {$file} "#!$^X\n", <<'KEYCHAIN';
use strict;
use warnings;
my $pid = open my $to, '|-', $ENV{LEASEHOLD_BIN}, @ARGV or die "open: $!";
while ( my $line = <STDIN> ) {
    if ( $line =~ m/"op":"release"/ ) { kill KILL => $pid; last }
    syswrite $to, $line;
}
close $to;
KEYCHAIN
    close $file;
    chmod 0755, "$FOLDER/keychain";
}

sub run {
    my ( $end, %option ) = @_;
    my $setting = exists $option{setting} ? "on_destroy_failure => '$option{setting}'," : q{};
    my $program = program( <<"PROGRAM", $server->url, "$FOLDER/keychain" );
@{[ $option{before} || q{} ]}
END { print "END block\\n" }
my \$manager = Leasehold::LockManager->new( url => \$ARGV[0], command => \$ARGV[1], ttl => 600, $setting );
our \$claim = \$manager->claim('destroy');
print \$claim->id, "\\n";
$end
print "went on\\n";
@{[ $option{after} || q{} ]}
PROGRAM
    my $id     = $program->line;
    my $rest   = $program->rest;
    my @result = ( $program->end, $rest, $program->errors );
    # Nobody holds it any more, and the next one wants it.
    $server->revoke($id);
    return @result;
}

my $WARNING = qr/whether 'destroy' is released.*destructor could not release/s;

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
    my $program = program( <<'PROGRAM', $server->url );
my $lost = 0;
my $manager = Leasehold::LockManager->new( url => $ARGV[0], ttl => 600, on_lost => sub { $lost++ } );
my $claim = $manager->claim('reported');
print $claim->id, "\n";
<STDIN>;
eval { $claim->refresh };
undef $claim;
print "lost $lost\n";
PROGRAM
    $server->revoke( $program->line );
    $program->say('go');
    is $program->line, 'lost 1';
    is $program->end,    'exit 0';
    is $program->errors, q{};
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
